"""Any engine that speaks OpenAI's API and vLLM's ``kv_transfer_params``, and of which no more is known.

Such an engine may be a worker of Baton's, which then grants leases. It is not asked to name the tokens of a stream.
"""

from __future__ import annotations

from typing import Any

from baton_serve.core.net.client.errors import CallError, ConnectError
from baton_serve.core.protocol.errors import ApiError
from baton_serve.core.protocol.handoff import ASK_PREFILL
from baton_serve.router.engines.baton.answer import PlainAnswer
from baton_serve.router.engines.baton.bodies import LIMITS, add_seed, common, decode_body
from baton_serve.router.engines.baton.engine import BatonEngine
from baton_serve.router.engines.legs import DecodeLeg, PrefillLeg, closed, whole
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.exchange import Exchange


class PlainEngine(BatonEngine):
    """See ``engines.port`` for what each method is for."""

    def hands_off(self, _asked: ClientRequest) -> bool:
        """Always: only D's answer is known to be right."""
        return True

    def for_reader(self, answer: PrefillAnswer, reader: int) -> PrefillAnswer | None:
        """None: P may free the blocks when one D has read."""
        return None

    def prefill_leg(self, request: Exchange, *, hand_off: bool) -> PrefillLeg:
        """P is asked for one token; it may refuse a ``min_tokens`` above that."""
        fields = request.body.fields
        tail: dict[str, Any] = {"stream": False, "max_tokens": 1}
        for name in LIMITS:
            if fields.get(name) is not None:
                tail[name] = 1
        if hand_off:
            tail["kv_transfer_params"] = ASK_PREFILL
        if fields.get("min_tokens"):
            tail["min_tokens"] = 1
        add_seed(tail, request.body)
        return PrefillLeg(closed(request.body.encoded(common), tail), hand_off=hand_off)

    def decoded(self, data: bytes, *, hand_off: bool) -> PrefillAnswer:
        """Only "stop" says that the first token is the last one; "length" says that one token was asked for."""
        return PlainAnswer(data, hand_off=hand_off)

    def decode_leg(self, request: Exchange, prefilled: PrefillAnswer | None) -> DecodeLeg:
        """P's parameters are passed on unchanged."""
        if not request.asked.splits:
            return DecodeLeg((), whole(request.body.fields), names_tokens=False)
        params = None if prefilled is None else prefilled.params()
        once = params is not None and not request.held.lease
        return DecodeLeg((), decode_body(request.body, params), names_tokens=False, once=once)

    def keeps_blocks(self, request: Exchange, error: CallError | ApiError) -> bool:
        """Without a lease, only a D that never had the parameters leaves P's blocks alone: others may free them."""
        if request.held.lease_end is not None:
            return False
        return request.held.lease is not None or (bool(request.held.engine_id) and isinstance(error, ConnectError))
