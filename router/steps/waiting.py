"""Waiting for a worker with room, or for any worker at all once all workers are gone.

A new request that no worker can serve is refused at once: its client, or a load balancer, can retry or ask elsewhere.
A request that a worker had when it died, or whose client has been sent something, waits instead: the death of the last
worker of a kind then costs it only the time until there is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from baton_serve.core.net.deadlines import Timeouts
from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.placement import Ahead, Need
from baton_serve.router.pool import Reservation, Route, WorkerPool
from baton_serve.router.queue.priorities import PriorityClasses
from baton_serve.router.queue.queues import Queues
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.steps.admission import Admission
from baton_serve.router.telemetry.metrics.metrics import Metrics
from baton_serve.router.upstream.prefill_aborts import PrefillAborts

if TYPE_CHECKING:
    from baton_serve.router.queue.worker_queue import Pick, Waiter, WorkerQueue


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where the requests of a router wait. ``timeout_s``: the most that one wait may take."""

    timeout_s: float
    pool: WorkerPool
    queues: Queues
    admission: Admission
    priorities: PriorityClasses
    timeouts: Timeouts
    prefill_aborts: PrefillAborts
    metrics: Metrics

    async def for_route(self, request: Exchange) -> Route:
        """The workers that may serve a request that has none now. Raises ApiError: at once, for a new request."""
        if not request.was_served:
            return self.pool.route(request.asked.model)
        return await self.for_workers(request)

    async def for_workers(self, request: Exchange) -> Route:
        """Wait until a worker takes work. Raises UnavailableError when that takes too long, or the last worker's
        error.
        """
        try:
            return await self.pool.until(partial(_working_route, request), self.timeout_s)
        except TimeoutError:
            raise request.attempts.last_error or UnavailableError(
                "No worker is left.", code="no_worker", retry_after_s=1
            ) from None

    async def for_room(
        self, request: Exchange, queue: WorkerQueue, pick: Pick, group: Hashable, need: Need
    ) -> Reservation:
        """Wait for a worker with room, and have the request hold a place on it.

        Raises RateLimitError if the queue is full, UnavailableError when the wait takes too long, and whatever the
        waiter was failed with.
        """
        reservation = None if len(queue) else pick(Ahead())
        if reservation is None:
            reservation = await self._in(queue, request, pick, group, need)
        request.held.reservation = reservation
        abort = self.prefill_aborts.hasten(reservation.worker.internal_url, request.request_id)
        if abort is not None:  # an abort of the last attempt on this worker; it must not end this attempt
            await asyncio.wait({abort})
        return reservation

    async def _in(self, queue: WorkerQueue, request: Exchange, pick: Pick, group: Hashable, need: Need) -> Reservation:
        asked, num_bytes = request.asked, request.body.num_bytes
        if request.is_untried:  # in the same step as it takes its place, so that a burst does not overfill the queue
            self.admission.make_room(self.pool.route(asked.model), asked.priority, num_bytes)
        waiter = request.held.waiter = queue.enter(pick, asked.priority, request.number, group, num_bytes, need)
        # Not a lambda: compiled, it would hold the waiter, which holds it.
        waiter.may_be_refused = partial(_may_be_refused, request)
        timer = self.timeouts.call_later(self.timeout_s, partial(self._give_up, waiter))
        request.body.forget_encoded()
        key = "held" if queue is self.queues.held else "prefill", self.priorities.name_of(asked.priority)
        self.metrics.waiting[key] += 1
        try:
            return await waiter.reservation()
        finally:
            self.metrics.waiting[key] -= 1
            timer.cancel()
            request.held.waiter = None

    def _give_up(self, waiter: Waiter) -> None:
        retry_s = self.queues.retry_after_s()
        waiter.fail(UnavailableError("No worker had room in time.", code="no_room", retry_after_s=retry_s))


def _working_route(request: Exchange) -> Route | None:
    """The request's route, if a worker there takes work now."""
    route = request.route()
    return route if route is not None and (route.can_prefill or route.can_decode) else None


def _may_be_refused(request: Exchange) -> bool:
    return not request.reply.is_begun
