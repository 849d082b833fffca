"""The record of a request for several answers, as listings, aborts and deadlines see it: one request, one id.

One task runs it (``steps.choices``), and one task each of its choices. To end it early, ``stop`` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from baton_serve.core.protocol.openai.choices import Choices
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.exchange import Exchange, LiveRequest, Trace
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.reply import ClientReply
from baton_serve.router.request.states import LIVE, State

#: Live states in the order in which a request goes through them.
_ORDER = {state: number for number, state in enumerate(LIVE)}

_BROKEN = frozenset({State.FAILED, State.ABORTED})


class WholeRequest(LiveRequest):
    """One request of several choices. ``steps.exit`` releases what they hold."""

    def __init__(
        self,
        request_id: str,
        asked: ClientRequest,
        choices: Choices,
        reply: ClientReply,
        exchanges: Sequence[Exchange],
        clock: Callable[[], float],
    ) -> None:
        """``clock``: the event loop's, seconds."""
        super().__init__(request_id, asked, reply, clock)
        self.choices = choices
        #: The choices, in the order of their indices.
        self._exchanges = exchanges
        self.started_s = clock()
        #: The request's state when its first choice failed or was aborted.
        self.broke_off_in = State.DECODING
        #: How it ended; None: it is live.
        self.end_state: State | None = None

    @property
    def exchanges(self) -> Sequence[Exchange]:
        return self._exchanges

    @property
    def is_over(self) -> bool:
        return self.end_state is not None

    def end(self, *, is_aborted: bool) -> None:
        """Note the end, and end the choices that never began; the others have ended already."""
        self.end_state = self.end_state or (State.ABORTED if is_aborted else State.FAILED)
        for one in self.exchanges:
            one.end(is_aborted=True)

    @property
    def state(self) -> State:
        """With the choice that has come least far."""
        if self.end_state is not None:
            return self.end_state
        live = [one.progress.state for one in self.exchanges if not one.progress.over]
        return min(live, key=_ORDER.__getitem__, default=self.broke_off_in)

    def facts(self, now_s: float) -> RequestFacts:
        """Counts are sums over the choices. The lease is one that a choice holds. All else is of the first choice."""
        every = [one.facts(now_s) for one in self.exchanges]
        holder = next((one for one in every if one.lease_id), every[0])
        return msgspec.structs.replace(
            every[0],
            id=self.request_id,
            state=self.state,
            lease_id=holder.lease_id,
            lease_remaining_ms=holder.lease_remaining_ms,
            started_s=self.started_s,
            age_s=now_s - self.started_s,
            ttft_s=self._ttft_s(self.started_s),
            answer_begun=self.reply.started,
            num_tokens=sum(one.num_tokens for one in every),
            num_chunks=sum(one.num_chunks for one in every),
            num_prefills=sum(one.num_prefills for one in every),
            num_retries=sum(one.num_retries for one in every),
            num_migrations=sum(one.num_migrations for one in every),
            is_migrating=any(one.is_migrating for one in every),
            dead_engines=tuple(dict.fromkeys(engine for one in every for engine in one.dead_engines)),
            last_error=next((one.last_error for one in every if one.last_error is not None), None),
            trace_id=None if self.trace is None else self.trace.trace_id,
        )

    def breaks_off(self, request: Exchange) -> None:
        """Note that a choice ends. If it is the first that is not done, keep the state: all others end too."""
        if not request.progress.over and not any(one.progress.state in _BROKEN for one in self.exchanges):
            self.broke_off_in = self.state

    def trace_with(self, trace: Trace) -> None:
        """Note the phases of all choices there from now on."""
        super().trace_with(trace)
        for index, one in enumerate(self.exchanges):
            one.trace_with(trace.of_choice(index))

    def __repr__(self) -> str:
        return f"<WholeRequest {self.request_id} {self.state}, {len(self.exchanges)} choices>"
