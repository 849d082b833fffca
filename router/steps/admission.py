"""Who is let in, who is refused, and who makes room for somebody more urgent.

What waits is bounded in number (``max_queue_length``) and in bytes of bodies (``max_queued_bytes``). At a bound a
request takes the place of the least urgent one, of these the youngest, that is less urgent than itself and has not been
answered in part; of several, if it needs that. If they are too few it is refused.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from core.protocol.errors import ApiError, RateLimitError, UnavailableError
from core.protocol.openai import MAX_PRIORITY
from router.queue.drain_rate import MAX_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.queue.worker_queue import Waiter, WorkerQueue
    from router.services import Services


def check_requests(services: Services, num_bodies: int) -> None:
    """Raise RateLimitError when no more requests are taken in any state. ``num_bodies``: requests still coming."""
    if len(services.active) + num_bodies >= services.settings.max_requests:
        raise RateLimitError("Too many requests are running.", retry_after_s=retry_after_s(services))


def check_queue(services: Services, priority: int | None) -> None:
    """Raise RateLimitError if nothing that a body may say will help. ``priority`` None: the body says it."""
    most_urgent = -MAX_PRIORITY if priority is None else priority
    if is_full(services, 0) and next(less_urgent(services, most_urgent), None) is None:
        raise RateLimitError("Too many requests are waiting.", retry_after_s=retry_after_s(services))


def make_room(services: Services, model: str, priority: int, num_bytes: int) -> None:
    """Let a request in, at the cost of others if need be. Raises RateLimitError, or UnavailableError if none serves."""
    displaced: list[Waiter] = []
    waiters, freed_bytes = less_urgent(services, priority), 0
    while is_full(services, num_bytes, len(displaced), freed_bytes):
        waiter = next(waiters, None)
        if waiter is None:  # nobody has been refused yet: it would have been for nothing
            raise _refusal(services, model)
        displaced.append(waiter)
        freed_bytes += waiter.num_bytes
    for waiter in displaced:
        services.metrics.num_displaced += 1
        waiter.fail(
            RateLimitError("A more urgent request took this one's place.", retry_after_s=retry_after_s(services))
        )


def is_full(services: Services, num_bytes: int, num_freed: int = 0, freed_bytes: int = 0) -> bool:
    """One more with a body of so many bytes would be more than may wait. The first may be of any size.

    ``num_freed``, ``freed_bytes``: of those that would be refused for it.
    """
    prefill, held, settings = services.prefill_queue, services.held_queue, services.settings
    if len(prefill) + len(held) - num_freed >= settings.max_queue_length:
        return True
    waiting = prefill.num_bytes + held.num_bytes - freed_bytes
    return bool(waiting) and waiting + num_bytes > settings.max_queued_bytes


def less_urgent(services: Services, priority: int) -> Iterator[Waiter]:
    """Who makes room for a request of this priority, the least urgent first."""
    return heapq.merge(
        services.prefill_queue.less_urgent(priority), services.held_queue.less_urgent(priority), reverse=True
    )


def retry_after_s(services: Services) -> float:
    """When to ask again: what waits now should have found room then. From 1 to 60 s."""
    now_s = asyncio.get_running_loop().time()

    def wait_s(queue: WorkerQueue) -> float:
        return queue.drain_rate.wait_s(len(queue), now_s)

    return min(max(wait_s(services.prefill_queue), wait_s(services.held_queue)), MAX_WAIT_S)


def _refusal(services: Services, model: str) -> ApiError:
    retry_s = retry_after_s(services)
    route = services.pool.route(model)
    if not route.can_decode or (route.prefill and not route.can_prefill):
        return UnavailableError("No worker for this request can be reached.", retry_after_s=retry_s)
    return RateLimitError("Too many requests are waiting.", retry_after_s=retry_s)
