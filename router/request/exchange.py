"""The life of one request: P, first token, held, D, relay.

One task runs it. Whoever wants it to end early (client gone, deadline, admin) calls ``stop``; every way out leads
through ``exit.settle``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.leases.store import LeaseState
from core.protocol.errors import ApiError, DeadlineError, UpstreamError
from router.placement import Prefilled, Prompt
from router.request.attempts import Attempts
from router.request.sent_tokens import Seen
from router.request.states import RETRIES, Event, Progress, State
from router.steps import decode as decode_leg
from router.steps import prefill as prefill_leg
from router.steps.relay import relay
from router.steps.waiting import LeaseLost, candidates

if TYPE_CHECKING:
    from router.pool import Place, Route, Worker
    from router.queue.worker_queue import Waiter
    from router.request.bodies import LegBodies
    from router.request.client_request import Ask
    from router.request.reply import Reply
    from router.services import Services
    from router.steps.prefill_answer import PrefillAnswer
    from router.tracing.spans import RequestTrace
    from router.upstream.port import Answer


class Exchange:
    """One request: what was asked, where it is, and what it holds. What it holds is given back in ``exit.py``."""

    __slots__ = (
        "answer",
        "ask",
        "attempts",
        "bodies",
        "decode_worker",
        "engine_id",
        "lease_end",
        "lease_id",
        "num_bytes",
        "num_chunks",
        "num_tokens",
        "number",
        "place",
        "prefill_worker",
        "progress",
        "prompt",
        "relayed_error",
        "reply",
        "request_id",
        "seen",
        "services",
        "stop_error",
        "task",
        "timer",
        "trace",
        "unread_prefill",
        "waiter",
    )

    def __init__(
        self, services: Services, request_id: str, ask: Ask, bodies: LegBodies, reply: Reply, num_bytes: int
    ) -> None:
        self.services = services
        self.request_id = request_id
        self.ask = ask
        self.bodies = bodies
        self.reply = reply
        #: Of the client's body, which stays until the end.
        self.num_bytes = num_bytes
        self.prompt = Prompt(
            ask.model, bodies.prompt_bytes(), ask.user, ask.max_new_tokens, bodies.prompt, bodies.num_ids()
        )
        self.number = services.active.next_number()
        self.progress = Progress(asyncio.get_running_loop().time())
        #: The last workers that prefilled and decoded, for people.
        self.prefill_worker: Worker | None = None
        self.decode_worker: Worker | None = None
        #: Held: a place on a worker, a place in a queue, an open answer, P's blocks.
        self.place: Place | None = None
        self.waiter: Waiter | None = None
        self.answer: Answer | None = None
        #: A P that may be granting a lease to us in an answer not read yet.
        self.unread_prefill: Worker | None = None
        self.engine_id = ""
        self.lease_id = ""
        #: How the lease ended while it was wanted; None: it is held, as far as is known.
        self.lease_end: LeaseState | None = None
        #: What the client has been sent, for whoever may have to go on; of streams only.
        self.seen = Seen(services.settings.max_event_bytes)
        #: What was tried, and who failed it.
        self.attempts = Attempts(services.limits, services.retry_budget)
        self.num_tokens = 0
        self.num_chunks = 0
        #: The error that D put into its stream, and that the client has seen.
        self.relayed_error: ApiError | None = None
        self.stop_error: ApiError | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.trace: RequestTrace | None = None

    # --- from outside

    def stop(self, error: ApiError) -> bool:
        """End it now, wherever it is; False if it was over or ending."""
        if self.stop_error is not None or self.progress.over or self.task is None:
            return False
        self.stop_error = error
        self.task.cancel()
        return True

    def deadline(self) -> None:
        """The request's own time is up."""
        self.stop(DeadlineError("The request took longer than its deadline."))

    def lease_over(self, end: LeaseState) -> None:
        """P keeps the blocks no longer. A held request is prefilled again at once; a D that reads notices by itself."""
        self.lease_end = end
        state = self.progress.state
        if state is State.HELD and self.waiter is not None:
            self.waiter.fail(LeaseLost())
        elif state is State.READING and not self.ask.stream and end is LeaseState.DONE:
            self.on(Event.READ)

    @property
    def weights(self) -> str | None:
        """Of the model that the client has tokens of; None while it has none."""
        return self.seen.weights if self.seen.begun else None

    # --- the flow

    async def run(self) -> None:
        """Until the client has everything. Raises ApiError; when cancelled, nothing is settled yet."""
        self.services.retry_budget.request(asyncio.get_running_loop().time())
        while True:
            self.lease_end = None
            route = await self._candidates()
            prefilled = None
            if not (route.single or self._is_last_token() or self._goes_direct(route)):
                prefilled = await prefill_leg.prefill(self)
            if prefilled is None:
                self.attempts.prefilled()
            elif await self._show_first(prefilled):
                return
            first = await decode_leg.decode(self, prefilled)
            prefilled = None  # a long prompt's ids, as long as the stream goes on
            if first is not None and await relay(self, first):
                return

    def _goes_direct(self, route: Route) -> bool:
        """P is skipped: a place on a D is this request's now. Nobody who waits for a D is passed, nor tried twice."""
        services, rule = self.services, self.services.direct
        if rule.is_off or self.seen.begun or self.attempts.num_prefills or len(services.held_queue):
            return False
        found = rule.workers_for(self.prompt, route.decode)
        if found is None:
            return False
        reason, workers = found
        worker = self.decode_worker = services.pick_decode.pick(workers, Prefilled(self.prompt, None, 0))
        self.occupy(services.pool.enter(worker, self.prompt.need.blocks_on(worker)))
        services.metrics.direct[reason] += 1
        return True

    async def _show_first(self, prefilled: PrefillAnswer) -> bool:
        """Send the first token; True when it was also the last."""
        whole = prefilled.is_whole(self.ask)
        if not prefilled.has_first_token and not whole:
            return False
        self.goes_on()
        self.num_tokens = self.num_tokens + 1 if self.ask.stream else 1
        if whole:
            await self._finish(prefilled)
        elif self.ask.stream:
            events = prefilled.first_events(self.ask, begun=self.seen.begun)
            self.seen.created = prefilled.created
            if prefilled.kv_transfer_params is not None:
                prefilled.kv_transfer_params = self.seen.cached_as_first(prefilled.kv_transfer_params)
            self.seen.add(prefilled.summary.first_token)
            await self.reply.write(events, content=prefilled.shows_text)
        return whole

    def _is_last_token(self) -> bool:
        """Of a stream that goes on: there would be nothing to hand over."""
        return self.seen.begun and len(self.seen.ids() or ()) + 1 == self.ask.max_new_tokens

    async def _candidates(self) -> Route:
        """Who may serve it. Where none could go on after the tokens so far, and the client has none, it begins anew.

        Raises ApiError.
        """
        pool, model = self.services.pool, self.ask.model
        if self.seen.begun and (self.seen.ids() is None or pool.candidates(model, self.weights) is None):
            if not self.reply.started and pool.candidates(model) is not None:
                self.reply.forget()
                self.seen.forget()
                self.num_tokens = 0
            elif self.seen.ids() is None:
                raise self.attempts.last_error or UpstreamError("Nobody knows which tokens the client has been sent.")
        return await candidates(self)

    async def _finish(self, prefilled: PrefillAnswer) -> None:
        """The first token was the last one."""
        if self.ask.stream:
            events = prefilled.first_events(self.ask, begun=self.seen.begun)
            await self.reply.write(events + self.seen.cached_as_first(prefilled.last_events(self.ask)))
            await self.reply.end()
        else:
            await self.reply.whole(200, b"application/json", prefilled.whole_body())
        self.on(Event.FINISHED)

    def goes_on(self) -> None:
        """There are new tokens: if the stream had broken off, another worker goes on with it now."""
        if self.attempts.continued():
            self.services.metrics.resumed["resumed"] += 1

    def age_s(self) -> float:
        """Seconds since it came."""
        return self.progress.age_s(asyncio.get_running_loop().time())

    # --- bookkeeping, used by the legs

    def on(self, event: Event) -> None:
        """Note what happened."""
        state, now_s = self.progress.state, asyncio.get_running_loop().time()
        self.progress.on(event, now_s)
        if event in RETRIES:
            self.attempts.num_retries += 1
        if self.trace is not None:
            self.trace.left(self, state, event, now_s)

    def occupy(self, place: Place) -> None:
        """A place, already reserved in the pool, is this request's."""
        self.place = place

    def vacate(self) -> None:
        """Give back the place on the worker and close what is open there; a P whose answer is unread is told."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.close()
        unread, self.unread_prefill = self.unread_prefill, None
        if unread is not None:
            self.services.prefill_aborts.start(unread, self.request_id)
        place, self.place = self.place, None
        if place is not None:
            self.services.pool.leave(place)

    def drop_lease(self) -> None:
        """Give P's blocks back."""
        lease_id, self.lease_id = self.lease_id, ""
        if lease_id:
            self.services.leases.release(self.engine_id, lease_id)
            self.services.leased.end(lease_id)
        self.engine_id = ""

    def __repr__(self) -> str:
        return f"<Exchange {self.request_id} {self.progress!r} on {self.place!r} lease {self.lease_id or '-'}>"
