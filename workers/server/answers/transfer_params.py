"""Decodes and checks ``kv_transfer_params`` of a request body: types, bounds, and consistency.

The params make this worker connect to other machines and read their memory, so they are accepted from the router only.
They are checked here once, for the engine, the handshake and the ranks; the engine then compares them with the request
that contains them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.handoff import MAX_READERS, KVTransferParams, Resume
from baton_serve.core.protocol.id_syntax import HAND_OFF_ID, LEASE_ID_PATTERN
from baton_serve.core.protocol.openai.requests import MAX_COMPLETION_LOGPROBS, MAX_TOP_LOGPROBS
from baton_serve.workers.limits import MAX_RANKS

PARAM = "kv_transfer_params"
_LEASE_ID = re.compile(LEASE_ID_PATTERN)
_HOST = re.compile(r"[0-9A-Za-z_.:%\[\]-]{1,255}")
T = TypeVar("T")
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


class TransferRequest(msgspec.Struct):
    """The params for P or, if no flag is set, for a worker that computes the whole answer. D gets ``KVTransferParams``.

    vLLM's routers send more fields, which are null.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    resume: Resume | None = None
    #: With ``do_remote_decode``: how many choices read the blocks, after which they are freed.
    num_readers: int = 1


def parse(raw: dict[str, Any]) -> TransferRequest | KVTransferParams:
    """The params as a checked type. Raises BadRequestError."""
    request = _convert(raw, TransferRequest)
    if request.do_remote_decode and request.do_remote_prefill:
        raise bad("do_remote_decode and do_remote_prefill exclude each other")
    if request.do_remote_prefill:
        if request.resume is not None:
            raise bad("a D is not asked to resume: its output_token_ids say where it goes on")
        params = _convert(raw, KVTransferParams)
        for complaint in chain(_about_the_engine(params), _about_the_blocks(params), _about_the_request(params)):
            raise bad(complaint)
        return params
    if not 1 <= request.num_readers <= (MAX_READERS if request.do_remote_decode else 1):
        raise bad(f"num_readers is from 1 to {MAX_READERS}, and is for a P only")
    if request.resume is not None:
        for complaint in _about_the_resumption(request.resume):
            raise bad(complaint)
    return request


def _convert(raw: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise bad(excerpt(str(error))) from None


def _about_the_engine(params: KVTransferParams) -> Iterable[str]:
    for name in ("remote_engine_id", "remote_request_id"):
        if not HAND_OFF_ID.fullmatch(getattr(params, name)):
            yield f"{name} is not an id"
    if not _is_adapter(params.adapter):
        yield "adapter is not a fingerprint"
    if not _LEASE_ID.fullmatch(params.lease_id):
        yield "lease_id is not an id"
    if not _HOST.fullmatch(params.remote_host) or not 0 < params.remote_port < 65536:
        yield "remote_host and remote_port are not an address"
    if not all(0 < size <= MAX_RANKS for size in (params.tp_size, params.pp_size, params.dcp_size)):
        yield f"tp_size, pp_size and dcp_size are from 1 to {MAX_RANKS}"


def _about_the_blocks(params: KVTransferParams) -> Iterable[str]:
    blocks = params.remote_block_ids[0] if len(params.remote_block_ids) == 1 else None
    if blocks is None:
        yield "remote_block_ids must hold the blocks of one KV group"
    elif not _are_within(blocks, 2**31):
        yield "remote_block_ids are not block ids"
    elif len(set(blocks)) != len(blocks):
        yield "remote_block_ids has an id twice"
    if not 0 < params.promise < 2**64:
        yield "promise is not from 1 to 2^64 - 1"
    if params.remote_num_tokens < 1:
        yield "remote_num_tokens must be at least 1"
    num_tokens = len(params.prompt_token_ids) + len(params.output_token_ids)
    if params.prompt_token_ids and num_tokens != params.remote_num_tokens:
        yield "remote_num_tokens is not the number of prompt_token_ids and output_token_ids"
    for name in ("prompt_token_ids", "output_token_ids"):
        if not _are_tokens(getattr(params, name)):
            yield f"{name} are not token ids"


def _about_the_resumption(resume: Resume) -> Iterable[str]:
    if not _are_tokens(resume.token_ids):
        yield "resume.token_ids are not token ids"
    if not 0 <= resume.created < 2**63:
        yield "resume.created is not a time"
    if not _is_adapter(resume.adapter):
        yield "resume.adapter is not a fingerprint"


def _is_adapter(fingerprint: str) -> bool:
    return not fingerprint or HAND_OFF_ID.fullmatch(fingerprint) is not None


def _are_tokens(token_ids: list[int]) -> bool:
    return _are_within(token_ids, 2**31)


def _are_within(numbers: list[int], end: int) -> bool:
    """Whether all numbers are from 0 to ``end`` - 1. Prompts are long, so no Python code runs for each number."""
    return not numbers or (min(numbers) >= 0 and max(numbers) < end)


def _about_the_request(params: KVTransferParams) -> Iterable[str]:
    if not -1 <= params.first_token < 2**31 or params.created < 0 or params.num_cached_tokens < 0:
        yield "first_token, created and num_cached_tokens must not be negative"
    if params.seed is not None and not -(2**63) <= params.seed < 2**63:
        yield "seed is a signed 64-bit integer"
    if params.first_logprobs is not None:
        yield from _about_the_logprobs(params.first_logprobs)


def _about_the_logprobs(first: dict[str, Any]) -> Iterable[str]:
    """P makes them in the shape of the endpoint, with ``text/logprobs.py``, and D shows them to the client."""
    kind = _Chat if "content" in first else _Completion
    try:
        checked = msgspec.convert(first, kind, strict=True)
    except msgspec.ValidationError as error:
        yield f"first_logprobs: {excerpt(str(error))}"
        return
    if isinstance(checked, _Completion) and len({len(values) for values in msgspec.structs.astuple(checked)}) > 1:
        yield "first_logprobs has lists of different lengths"


def bad(complaint: str) -> BadRequestError:
    """The error for a ``complaint`` about the params."""
    return BadRequestError(f"Invalid '{PARAM}': {complaint}.", param=PARAM, code="kv_params_invalid")
