"""Waiting for a worker with room, or for any worker at all once all workers are gone.

A new request that no worker can serve is refused at once: its client, or a load balancer, can retry or ask elsewhere.
A request that a worker had when it died, or whose client has been sent something, waits instead: the death of the last
worker of a kind then costs it only the time until there is another one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.placement import Ahead
from baton_serve.router.steps.admission import make_room, retry_after_s

if TYPE_CHECKING:
    from collections.abc import Hashable

    from baton_serve.router.placement import Need
    from baton_serve.router.pool import Route, Worker
    from baton_serve.router.queue.worker_queue import Pick, Waiter, WorkerQueue
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.services import Services


async def candidates(services: Services, request: Exchange) -> Route:
    """The workers that may serve the request, reachable or not. Raises ApiError."""
    route = services.pool.candidates(request.asked.model, request.weights)
    if route is not None:
        return route
    if not was_served(request):
        return services.pool.route(request.asked.model)
    return await wait_for_workers(services, request)


def was_served(request: Exchange) -> bool:
    """Whether a worker has died with the request, or its client has been sent something."""
    return bool(request.attempts.dead_engines) or request.sent_tokens.begun or request.reply.is_begun


async def wait_for_workers(services: Services, request: Exchange) -> Route:
    """Wait until a worker takes work. Raises UnavailableError after ``held_timeout_s``, or the last worker's error."""
    changed = asyncio.Event()
    listeners = services.pool.on_room
    listeners.append(changed.set)
    try:
        async with asyncio.timeout(services.settings.held_timeout_s):
            while True:
                route = services.pool.candidates(request.asked.model, request.weights)
                if route is not None and (route.can_prefill or route.can_decode):
                    return route
                changed.clear()
                await changed.wait()
    except TimeoutError:
        raise request.attempts.last_error or UnavailableError(
            "No worker is left.", code="no_worker", retry_after_s=1
        ) from None
    finally:
        listeners.remove(changed.set)


async def wait_for_room(
    services: Services, request: Exchange, queue: WorkerQueue, pick: Pick, group: Hashable, need: Need
) -> Worker:
    """Wait for a worker with room, and have the request hold a place on it.

    Raises RateLimitError if the queue is full, UnavailableError after ``held_timeout_s``, and whatever the waiter was
    failed with.
    """
    reservation = None if len(queue) else pick(Ahead())
    if reservation is None:
        if request.is_untried:  # in the same step as it takes its place, so that a burst does not overfill the queue
            make_room(services, request.asked.model, request.asked.priority, request.num_bytes)
        waiter = request.waiter = queue.enter(
            pick, request.asked.priority, request.number, group, request.num_bytes, need
        )
        # Not a lambda: compiled, it would hold the waiter, which holds it.
        waiter.may_be_refused = partial(_may_be_refused, request)
        timer = services.timeouts.call_later(services.settings.held_timeout_s, partial(_give_up, services, waiter))
        request.body.forget_encoded()
        waiting = services.metrics.waiting
        key = "held" if queue is services.held_queue else "prefill", services.priorities.name_of(request.asked.priority)
        waiting[key] += 1
        try:
            reservation = await waiter.reservation()
        finally:
            waiting[key] -= 1
            timer.cancel()
            request.waiter = None
    request.occupy(reservation)
    worker = reservation.worker
    abort = services.prefill_aborts.hasten(worker.internal_url, request.request_id)
    if abort is not None:  # an abort of the last attempt on this worker; it must not end this attempt
        await asyncio.wait({abort})
    return worker


def _may_be_refused(request: Exchange) -> bool:
    return not request.reply.is_begun


def _give_up(services: Services, waiter: Waiter) -> None:
    waiter.fail(UnavailableError("No worker had room in time.", code="no_room", retry_after_s=retry_after_s(services)))
