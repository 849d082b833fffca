"""What Baton's P and D are sent. Pure."""

from __future__ import annotations

from typing import Any, Final

import orjson

from baton_serve.core.net.client.connection import Pieces
from baton_serve.core.protocol.handoff import ASK_PREFILL
from baton_serve.core.protocol.openai.requests import NO_EFFECT
from baton_serve.router.engines.legs import closed, opened
from baton_serve.router.request.bodies import ClientBody

#: Fields that differ between P's body and D's.
_PER_LEG: Final = frozenset(
    {"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "seed", "kv_transfer_params"}
)
_DROPPED: Final = _PER_LEG | NO_EFFECT
#: The fields that limit the number of new tokens.
LIMITS: Final = ("max_tokens", "max_completion_tokens")


def prefill_body(body: ClientBody, *, hand_off: bool, resume: bytes | None = None, num_readers: int = 1) -> Pieces:
    """The body for P. ``hand_off``: P keeps the blocks for ``num_readers`` choices. ``resume``: the tokens so far.

    P gets ``min_tokens`` and the limits unchanged, and samples one token anyway: ``min_tokens`` decides which tokens
    are banned and where stop strings count, and a limit that does not fit is refused before the first token. Where
    the client gave none, P knows the model's own.
    """
    fields = body.fields
    tail: dict[str, Any] = {name: fields[name] for name in LIMITS if fields.get(name) is not None}
    tail["stream"] = False
    if hand_off:
        go_on: dict[str, Any] = {} if resume is None else {"resume": orjson.Fragment(resume)}
        if num_readers > 1:
            go_on["num_readers"] = num_readers
        tail["kv_transfer_params"] = {**ASK_PREFILL, **go_on}
    if fields.get("min_tokens"):
        tail["min_tokens"] = fields["min_tokens"]
    add_seed(tail, body)
    return closed(body.encoded(common), tail)


def decode_body(body: ClientBody, kv_transfer_params: Pieces | None) -> Pieces:
    """The body for D: the client's body, and where P's blocks are. None: the worker prefills by itself."""
    tail = {name: value for name, value in body.fields.items() if value is not None and name in _PER_LEG}
    tail.pop("kv_transfer_params", None)
    add_seed(tail, body)
    raw = () if kv_transfer_params is None else ((b"kv_transfer_params", kv_transfer_params),)
    return closed(body.encoded(common), tail, raw)


def common(body: ClientBody) -> memoryview:
    """What all legs have in common, whatever the seed."""
    return opened({name: value for name, value in body.fields.items() if name not in _DROPPED and value is not None})


def add_seed(tail: dict[str, Any], body: ClientBody) -> None:
    """Add the seed to a leg's own fields: the client's or, if it gave none and sampling is random, one that is the same
    for all workers, so that all draw the same.
    """
    seed = body.fields.get("seed")
    if seed is None and body.fields.get("temperature") != 0:
        seed = body.seed
    if seed is not None:
        tail["seed"] = seed
