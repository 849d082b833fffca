"""Checks the logprobs of the first token that D gets from P, because D shows them to the client.

Pure. P makes these logprobs with ``logprobs.py``, in the shape of the endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.openai.requests import MAX_COMPLETION_LOGPROBS, MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Upper bound for the bytes of one vocabulary entry: more than any entry has.
MAX_TOKEN_BYTES = 4096
_Text = Annotated[str, Meta(max_length=MAX_TOKEN_BYTES)]
_Bytes = Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(max_length=MAX_TOKEN_BYTES)]


class _Alternative(msgspec.Struct, forbid_unknown_fields=True):
    token: _Text
    logprob: float
    bytes: _Bytes | None


class _Entry(_Alternative, forbid_unknown_fields=True):
    top_logprobs: Annotated[list[_Alternative], Meta(max_length=MAX_TOP_LOGPROBS)]


class _Chat(msgspec.Struct, forbid_unknown_fields=True):
    """The logprobs of the first token; empty if P has not shown the token's text."""

    content: Annotated[list[_Entry], Meta(max_length=1)] | None
    refusal: None = None


class _Completion(msgspec.Struct, forbid_unknown_fields=True):
    tokens: Annotated[list[_Text], Meta(max_length=1)]
    token_logprobs: Annotated[list[float], Meta(max_length=1)]
    #: One entry more than requested, because the sampled token is listed even if it is not among the most likely.
    top_logprobs: Annotated[
        list[Annotated[dict[_Text, float], Meta(max_length=MAX_COMPLETION_LOGPROBS + 1)]], Meta(max_length=1)
    ]
    text_offset: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=1)]


def complaints_about(first: dict[str, Any]) -> Iterable[str]:
    """What is wrong with ``first_logprobs``, for an error message; yields nothing if it is valid."""
    kind = _Chat if "content" in first else _Completion
    try:
        checked = msgspec.convert(first, kind, strict=True)
    except msgspec.ValidationError as error:
        yield f"first_logprobs: {excerpt(str(error))}"
        return
    if isinstance(checked, _Completion) and len({len(values) for values in msgspec.structs.astuple(checked)}) > 1:
        yield "first_logprobs has lists of different lengths"
