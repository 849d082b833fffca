"""vLLM's servers, as the steps of a request use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.net.client.errors import CallError, ConnectError
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.engines.legs import DecodeLeg, PrefillLeg, whole
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.engines.stored_lease import StoredLease, hold, may_have_read
from baton_serve.router.pool import Worker
from baton_serve.router.renewal.port import HeldLease, LeaseRenewer
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.sent_tokens import SentTokens
from baton_serve.router.vllm.engine.answer import VllmAnswer
from baton_serve.router.vllm.engine.bodies import decode_body, prefill_body
from baton_serve.router.vllm.engine.continuing import can_continue
from baton_serve.router.vllm.engine.tokens import VllmTokens
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases

#: Bytes of one token id in JSON, at most: a vocabulary has less than a million tokens.
_ID_BYTES = 7


class StoredLeases(NamedTuple):
    """The leases in the store, which are used as long as every D has a fence.

    A read that a D without one repeats, after another D may have read and P has freed the blocks, would not be noticed.
    """

    renewer: LeaseRenewer
    all_have_fence: Callable[[], bool]


class VllmEngine:
    """See ``engines.port`` for what each method is for."""

    def __init__(self, leases: VllmLeases, stored: StoredLeases | None, max_event_bytes: int) -> None:
        """``stored`` None: this router has no store that P could share."""
        self._leases = leases
        self._stored = stored
        #: A longer prompt's ids would not fit into D's first event.
        self._max_prompt_tokens = max_event_bytes // (2 * _ID_BYTES)

    def sent_tokens(self, body: ClientBody, max_event_bytes: int) -> SentTokens:
        """vLLM names the tokens inside the events."""
        return VllmTokens(max_event_bytes, wants_ids=bool(body.fields.get("return_token_ids")))

    def hands_off(self, _asked: ClientRequest) -> bool:
        """Always: a request that P could answer alone is one that does not split."""
        return True

    def prefill_leg(self, request: Exchange, *, hand_off: bool) -> PrefillLeg:
        """A stream that broke is prefilled with the tokens that the client has."""
        body = prefill_body(request.body, self._token_ids(request))
        return PrefillLeg(body, hand_off=hand_off, asked_ms=self._leases.now_ms())

    def prefill_answer(self, data: bytes, leg: PrefillLeg) -> PrefillAnswer:
        """P's answer. Another request's lease is refused: each would release the other's blocks."""
        answer = VllmAnswer(data, leg)
        if answer.where is not None:
            engine_id, lease_id = answer.where.engine_id, answer.summary.lease_id
            is_known = self._leases.tracks(engine_id, answer.summary.remote_request_id)
            if is_known or (self._stored is not None and lease_id and self._stored.renewer.tracks(engine_id, lease_id)):
                raise ValueError("another request has that lease")
        return answer

    def hold(self, answer: PrefillAnswer, on_over: Callable[[LeaseState], None] | None) -> HeldLease | None:
        """The lease is renewed in the store, if P has granted it there and every D has a fence.

        Else it is renewed by notifications over NIXL, and its id is P's own id of the request.
        """
        assert isinstance(answer, VllmAnswer)
        if answer.where is None:
            return None
        if self._stored is not None and answer.summary.lease_id and self._stored.all_have_fence():
            return hold(self._stored.renewer, answer.where.engine_id, answer.summary.lease_id, on_over)
        return self._leases.hold(
            answer.where, answer.summary.remote_request_id, on_over or _ignore, asked_ms=answer.asked_ms
        )

    def for_reader(self, answer: PrefillAnswer, reader: int) -> PrefillAnswer | None:
        """None: P frees the blocks when one D has read."""
        return None

    def still_held(self, lease: HeldLease, worker: Worker) -> bool:
        """After the deadline a D would read another prompt's blocks, and nothing would tell, unless both have a fence.

        A P that has granted the lease in the store has a fence.
        """
        return worker.has_fence if isinstance(lease, StoredLease) else bool(lease.remaining_ms())

    def decode_leg(self, request: Exchange, prefilled: PrefillAnswer | None) -> DecodeLeg:
        """D gets P's parameters unchanged, and the prompt as token ids if P has told them."""
        if not request.asked.splits:
            return DecodeLeg((), whole(request.body.fields), names_tokens=False)
        sent = request.sent_tokens
        params = None if prefilled is None else prefilled.kv_transfer_params
        token_ids = self._token_ids(request)
        if not token_ids and isinstance(prefilled, VllmAnswer):
            token_ids = prefilled.prompt_token_ids
            if isinstance(sent, VllmTokens):
                sent.prompt_token_ids = token_ids
        names = self._names_tokens(request)
        num_sent = sent.num_sure if isinstance(sent, VllmTokens) and sent.begun else 0
        body = decode_body(request.body, params, token_ids, names_tokens=names, num_sent=num_sent)
        return DecodeLeg(
            (), body, names_tokens=names, once=params is not None and not isinstance(request.held.lease, StoredLease)
        )

    def num_opening_events(self, request: Exchange) -> int:
        """A chat begins with its role every time, which may come before an error."""
        return 2 if request.asked.chat else 1

    def may_have_read(self, request: Exchange) -> bool:
        """Only a lease in the store can tell; without one the answer is yes."""
        return not isinstance(request.held.lease, StoredLease) or may_have_read(request)

    def keeps_blocks(self, request: Exchange, error: CallError | ApiError) -> bool:
        """P keeps them as long as a lease in the store is renewed. Without one, only a D that never had the parameters
        leaves P's blocks alone.

        A D that refused them had P free the blocks, and a D that died may have read them, after which P freed them.
        """
        if isinstance(request.held.lease, StoredLease):
            return request.held.lease_end is None
        never_had = isinstance(error, ConnectError) and not error.was_sent
        return never_had and request.held.lease is not None and request.held.lease_end is None

    def _token_ids(self, request: Exchange) -> bytes:
        """Prompt and tokens so far of a stream that broke; empty: nothing has been sent yet."""
        sent = request.sent_tokens
        return sent.all_ids() if isinstance(sent, VllmTokens) and sent.begun else b""

    def _names_tokens(self, request: Exchange) -> bool:
        """Whether D is asked for the ids: a stream that could be continued, with a prompt that is not too long."""
        asked = request.asked
        return (
            asked.stream
            and asked.splits
            and isinstance(request.sent_tokens, VllmTokens)
            and request.prompt.num_tokens <= self._max_prompt_tokens
            and can_continue(request.body.fields)
        )


def _ignore(_end: LeaseState) -> None:
    """No request waits for this lease."""
