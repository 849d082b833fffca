"""Who is let in, who is refused, and who makes room for somebody more urgent.

What waits is bounded in number (``max_queue_length``) and in bytes of bodies (``max_queued_bytes``). At a bound a
request takes the place of the least urgent one, of these the youngest, that has a lower priority and has not been
answered in part; if there is none it is refused.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.errors import ApiError, RateLimitError, UnavailableError
from protocol.openai import MAX_PRIORITY
from router.pace import MAX_WAIT_S

if TYPE_CHECKING:
    from router.room_queue import RoomQueue, Waiter
    from router.services import Services


def check_requests(services: Services, num_bodies: int) -> None:
    """Raise RateLimitError when no more requests are taken in any state. ``num_bodies``: requests still coming."""
    if len(services.active) + num_bodies >= services.settings.max_requests:
        raise RateLimitError("Too many requests are running.", retry_after_s=retry_after_s(services))


def check_queue(services: Services, priority: int | None) -> None:
    """Raise RateLimitError if nothing that a body may say will help. ``priority`` None: the body says it."""
    at_most = MAX_PRIORITY if priority is None else priority
    if is_full(services, 0) and least_urgent(services, at_most) is None:
        raise RateLimitError("Too many requests are waiting.", retry_after_s=retry_after_s(services))


def make_room(services: Services, model: str, priority: int, num_bytes: int) -> None:
    """Let a request in, at the cost of others if need be. Raises RateLimitError, or UnavailableError if none serves."""
    while is_full(services, num_bytes):
        waiter = least_urgent(services, priority)
        if waiter is None:
            raise _refusal(services, model)
        services.metrics.num_displaced += 1
        waiter.fail(
            RateLimitError("A more urgent request took this one's place.", retry_after_s=retry_after_s(services))
        )


def is_full(services: Services, num_bytes: int) -> bool:
    """One more with a body of so many bytes would be more than may wait. The first may be of any size."""
    queues, settings = (services.prefill_queue, services.held_queue), services.settings
    if sum(map(len, queues)) >= settings.max_queue_length:
        return True
    waiting = sum(queue.num_bytes for queue in queues)
    return bool(waiting) and waiting + num_bytes > settings.max_queued_bytes


def least_urgent(services: Services, priority: int) -> Waiter | None:
    """Who makes room for a request of this priority; None: nobody has a lower one."""
    last = [queue.last_below(priority) for queue in (services.prefill_queue, services.held_queue)]
    return max((waiter for waiter in last if waiter is not None), default=None)


def retry_after_s(services: Services) -> float:
    """When to ask again: what waits now should have found room then. From 1 to 60 s."""
    now_s = asyncio.get_running_loop().time()

    def wait_s(queue: RoomQueue) -> float:
        return queue.pace.wait_s(len(queue), now_s)

    return min(max(wait_s(services.prefill_queue), wait_s(services.held_queue)), MAX_WAIT_S)


def _refusal(services: Services, model: str) -> ApiError:
    retry_s = retry_after_s(services)
    route = services.pool.route(model)
    if not all(any(worker.takes_work for worker in part) for part in (route.prefill or route.decode, route.decode)):
        return UnavailableError("No worker for this request can be reached.", retry_after_s=retry_s)
    return RateLimitError("Too many requests are waiting.", retry_after_s=retry_s)
