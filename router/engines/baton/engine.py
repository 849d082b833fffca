"""Baton's own workers, as the steps of a request use them."""

from __future__ import annotations

from collections.abc import Callable

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.net.client.errors import CallError
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.engines.baton.answer import BatonAnswer, ReaderAnswer
from baton_serve.router.engines.baton.bodies import decode_body, prefill_body
from baton_serve.router.engines.legs import DecodeLeg, PrefillLeg, whole
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.engines.stored_lease import hold, may_have_read
from baton_serve.router.pool import Worker
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.renewal.port import HeldLease, LeaseRenewer
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.sent_tokens import ASK_NAMES, SentTokens


class BatonEngine:
    """See ``engines.port`` for what each method is for."""

    def __init__(self, leases: LeaseRenewer, lease_limit: LeaseLimit) -> None:
        self._leases = leases
        self._lease_limit = lease_limit

    def sent_tokens(self, _body: ClientBody, max_event_bytes: int) -> SentTokens:
        """Baton's workers name the tokens in comments beside the events."""
        return SentTokens(max_event_bytes)

    def hands_off(self, asked: ClientRequest) -> bool:
        """An answer of one token needs no D, so P need not keep the blocks."""
        return asked.max_new_tokens != 1

    def prefill_leg(self, request: Exchange, *, hand_off: bool) -> PrefillLeg:
        """A migrated stream is prefilled after the tokens that the client has."""
        sent = request.sent_tokens
        resume = sent.resume() if sent.begun else None
        body = prefill_body(request.body, hand_off=hand_off, resume=resume, num_readers=request.num_readers)
        return PrefillLeg(body, hand_off=hand_off)

    def prefill_answer(self, data: bytes, leg: PrefillLeg) -> PrefillAnswer:
        """Another request's lease is refused: both would renew it, and the first to finish would release it."""
        answer = self.decoded(data, hand_off=leg.hand_off)
        engine_id, lease_id = answer.summary.remote_engine_id, answer.summary.lease_id
        if lease_id and (self._leases.tracks(engine_id, lease_id) or self._lease_limit.holds(lease_id)):
            raise ValueError("another request has that lease")
        return answer

    def decoded(self, data: bytes, *, hand_off: bool) -> PrefillAnswer:
        """P's answer without regard to other requests. Raises ValueError."""
        return BatonAnswer(data, hand_off=hand_off)

    def hold(self, answer: PrefillAnswer, on_over: Callable[[LeaseState], None] | None) -> HeldLease | None:
        """The lease is renewed in Redis."""
        if not answer.summary.lease_id:
            return None
        return hold(self._leases, answer.summary.remote_engine_id, answer.summary.lease_id, on_over)

    def for_reader(self, answer: PrefillAnswer, reader: int) -> PrefillAnswer | None:
        """P keeps the blocks until each reader has told it by a name of its own that it has read."""
        if not isinstance(answer, BatonAnswer) or not answer.summary.lease_id:
            return None
        return ReaderAnswer(answer.common_params(), answer.summary, reader)

    def still_held(self, _lease: HeldLease, _worker: Worker) -> bool:
        """D checks by itself, by the fence, whether the blocks are what P promised."""
        return True

    def decode_leg(self, request: Exchange, prefilled: PrefillAnswer | None) -> DecodeLeg:
        """A D without P's blocks continues a migrated stream after the tokens that the client has."""
        if request.asked.passed_on and not request.asked.splits:
            return DecodeLeg((), whole(request.body.fields), names_tokens=False)
        params = None if prefilled is None else prefilled.params()
        if prefilled is None and request.sent_tokens.begun:
            params = (b'{"resume":%b}' % request.sent_tokens.resume(),)
        names = request.asked.stream
        return DecodeLeg((ASK_NAMES,) if names else (), decode_body(request.body, params), names_tokens=names)

    def num_opening_events(self, request: Exchange) -> int:
        """A chat begins with its role, unless the client has been sent it before."""
        return 2 if request.asked.chat and not request.sent_tokens.begun else 1

    def may_have_read(self, request: Exchange) -> bool:
        """The lease in the store tells."""
        return may_have_read(request)

    def keeps_blocks(self, request: Exchange, _error: CallError | ApiError) -> bool:
        """Whatever became of D, P keeps the blocks as long as the lease is renewed."""
        return request.held.lease is not None and request.held.lease_end is None
