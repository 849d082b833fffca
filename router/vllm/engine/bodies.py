"""What vLLM's P and D are sent. Pure.

The prompt's token ids, once P has told them, go to D, which then does not tokenize. A continued stream has its tokens
so far behind them.
"""

from __future__ import annotations

from typing import Any

import orjson

from baton_serve.core.net.client.connection import Pieces
from baton_serve.core.protocol.handoff import ASK_PREFILL
from baton_serve.core.protocol.openai.requests import COMPLETION_MAX_TOKENS
from baton_serve.router.engines.legs import closed, opened
from baton_serve.router.request.bodies import ClientBody

_LIMITS = ("max_tokens", "max_completion_tokens")
#: Fields that differ between the bodies for P, for D, and for a server that continues a stream.
_PER_LEG = frozenset(
    {*_LIMITS, "stream", "stream_options", "min_tokens", "seed", "return_token_ids", "kv_transfer_params", "prompt"}
)
_ASK = orjson.dumps(ASK_PREFILL)


def prefill_body(body: ClientBody, token_ids: bytes) -> Pieces:
    """The body for P: one token, not streamed. ``token_ids``: JSON list of prompt and tokens so far; empty: as text.

    ``max_tokens`` is always given: a completion does not know ``max_completion_tokens``, and if P computed more than
    one token, it would hand over more blocks than the prompt has, of which D would read the wrong ones.

    ``min_tokens`` is left out, since a limit of one token may not be below it.
    """
    limits = {"max_tokens": 1, **{name: 1 for name in _LIMITS if body.fields.get(name) is not None}}
    tail: dict[str, Any] = {"stream": False, **limits, "return_token_ids": True}
    if body.fields.get("seed") is not None:
        tail["seed"] = body.fields["seed"]
    return _with_prompt(body, tail, _ASK, token_ids)


def decode_body(
    body: ClientBody, params: bytes | None, token_ids: bytes, *, names_tokens: bool, num_sent: int = 0
) -> Pieces:
    """The body for D. ``params``: P's ``kv_transfer_params``; None: the server prefills by itself.

    ``num_sent``: tokens in ``token_ids`` that the client has been sent; they count against its limits.
    """
    fields = body.fields
    tail = {name: fields[name] for name in _PER_LEG - {"prompt"} if fields.get(name) is not None}
    if num_sent:
        tail |= _remaining(fields, num_sent)
    if names_tokens:
        tail["return_token_ids"] = True
    return _with_prompt(body, tail, params, token_ids)


def _remaining(fields: dict[str, Any], num_sent: int) -> dict[str, Any]:
    """The limits of a continued stream. A server has taken the body before, so they are numbers."""
    is_completion = "prompt" in fields
    known = _LIMITS[:1] if is_completion else _LIMITS
    limits = {name: fields[name] - num_sent for name in known if fields.get(name) is not None}
    if is_completion and not limits:
        limits["max_tokens"] = COMPLETION_MAX_TOKENS - num_sent
    if fields.get("min_tokens"):
        limits["min_tokens"] = max(0, fields["min_tokens"] - num_sent)
    return limits


def _with_prompt(body: ClientBody, tail: dict[str, Any], params: bytes | None, token_ids: bytes) -> Pieces:
    """The body with the prompt as the client sent it or, if there are ``token_ids``, as those.

    A chat has no field for token ids; vLLM takes them beside the parameters of the hand-off.
    """
    raw: list[tuple[bytes, Pieces]] = []
    if "prompt" in body.fields:
        if token_ids:
            raw.append((b"prompt", (token_ids,)))
        else:
            tail = {**tail, "prompt": body.fields["prompt"]}
    elif token_ids:
        params = b'%b"prompt_token_ids":%b}' % (b"{" if params is None else params.rstrip()[:-1] + b",", token_ids)
    if params is not None:
        raw.append((b"kv_transfer_params", (params,)))
    return closed(body.encoded(_common), tail, raw)


def _common(body: ClientBody) -> memoryview:
    """What all legs have in common. No seed is added: D alone samples what the client gets."""
    return opened({name: value for name, value in body.fields.items() if name not in _PER_LEG})
