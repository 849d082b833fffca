"""The bodies that most clients send, checked in a hundredth of the time that ``requests`` takes.

Whatever passes here would pass there, and means the same; what does not pass is checked there, which also finds the
words for what is wrong. So this knows only plain texts, and only the fields that clients use every day.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from core.protocol.openai.requests import MAX_PRIORITY, MAX_STOP_CHARS, MAX_STOP_STRINGS

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Limit = Annotated[int, Meta(ge=1)]
_Name = Annotated[str, Meta(max_length=512)]
_Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str = ""


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class _Plain(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: _Limit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Literal[1] | None = None
    user: _Name | None = None
    safety_identifier: _Name | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    ignore_eos: bool = False
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class PlainChat(_Plain):
    """Body of ``POST /v1/chat/completions``: texts only."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_completion_tokens: _Limit | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that the client wants; None: as many as fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class PlainCompletion(_Plain):
    """Body of ``POST /v1/completions``: one prompt."""

    prompt: str | Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that the client wants; None: it has not said."""
        return self.max_tokens


def plain(body: dict[str, Any], *, chat: bool) -> PlainChat | PlainCompletion | None:
    """The body if it is a plain one; None: it is not, or not a valid one. ``body`` is sent to workers as it is."""
    found: PlainChat | PlainCompletion
    try:
        found = msgspec.convert(body, PlainChat) if chat else msgspec.convert(body, PlainCompletion)
    except msgspec.ValidationError:
        return None
    return found if found.stream or found.stream_options is None else None
