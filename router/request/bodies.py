"""The request bodies that P and D are sent. Pure.

A client's body is encoded once, without the few fields that differ between the legs; each leg's body is that plus a
short tail. P's ``kv_transfer_params`` are spliced into D's body without parsing, since block lists are long.
"""

from __future__ import annotations

import random
from typing import Any

import orjson

from core.protocol.handoff import ASK_PREFILL
from core.protocol.openai.requests import NO_EFFECT
from router.request.prompt_text import num_prompt_bytes, num_prompt_ids, prompt_text

#: Fields that differ between P's body and D's.
_PER_LEG = frozenset(
    {"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "kv_transfer_params"}
)
_DROPPED = _PER_LEG | NO_EFFECT
_LIMITS = ("max_tokens", "max_completion_tokens")


class LegBodies:
    """The bodies of all legs of one request.

    A seed is added if the client gave none and sampling is random, so that every worker of the request draws the same
    noise.
    """

    __slots__ = ("_body", "_common")

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body
        common = {name: value for name, value in body.items() if name not in _DROPPED and value is not None}
        if "seed" not in common and common.get("temperature") != 0:
            common["seed"] = random.getrandbits(53)
        self._common = orjson.dumps(common)[:-1]

    def prefill(self, *, hand_off: bool, ours: bool, resume: bytes | None = None) -> bytes:
        """The body for P: one token, not streamed. ``hand_off``: P keeps the blocks for a D. ``resume``: the tokens so
        far.

        Baton's workers get ``min_tokens`` and the limits unchanged, and sample one token anyway: ``min_tokens`` decides
        which tokens are banned and where stop strings count, and a limit that does not fit is refused before the first
        token. Other engines are asked for one token; they refuse a ``min_tokens`` above that.
        """
        limits = {name: self._body[name] for name in _LIMITS if self._body.get(name) is not None}
        one = {"max_tokens": 1, **dict.fromkeys(limits, 1)}
        tail: dict[str, Any] = {"stream": False, **(limits if ours and limits else one)}
        if hand_off:
            go_on = {} if resume is None else {"resume": orjson.Fragment(resume)}
            tail["kv_transfer_params"] = {**ASK_PREFILL, **go_on}
        min_tokens = self._body.get("min_tokens")
        if min_tokens:
            tail["min_tokens"] = min_tokens if ours else 1
        return self._join(orjson.dumps(tail))

    def decode(self, kv_transfer_params: bytes | None) -> bytes:
        """The body for D: the client's body, and where P's blocks are. None: the worker prefills by itself."""
        body = self._body
        tail = orjson.dumps(
            {name: body[name] for name in _PER_LEG if name != "kv_transfer_params" and body.get(name) is not None}
        )
        if kv_transfer_params is not None:
            comma = b"," if len(tail) > 2 else b""
            tail = b"".join((tail[:-1], comma, b'"kv_transfer_params":', kv_transfer_params, b"}"))
        return self._join(tail)

    def prompt(self) -> bytes:
        """See ``prompt_text``."""
        return prompt_text(self._body)

    def prompt_bytes(self) -> int:
        """See ``num_prompt_bytes``."""
        return num_prompt_bytes(self._body)

    def num_ids(self) -> int | None:
        """See ``num_prompt_ids``."""
        return num_prompt_ids(self._body)

    def _join(self, tail: bytes) -> bytes:
        if tail == b"{}":
            return self._common + b"}"
        return b"".join((self._common, b"," if len(self._common) > 1 else b"", tail[1:]))
