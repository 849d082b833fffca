"""Which requests are admitted, which are refused, and which are displaced by more urgent ones.

Waiting requests are bounded in number (``max_queue_length``) and in bytes of bodies (a constant). At a bound
a new request displaces waiting ones that are less urgent and whose clients have been sent nothing yet: the least urgent
first, among equals the youngest, until there is room. If they are too few, it is refused and none is displaced.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import ApiError, BadRequestError, RateLimitError, UnavailableError
from baton_serve.core.protocol.openai.requests import MAX_PRIORITY
from baton_serve.router.queue.drain_rate import MAX_WAIT_S
from baton_serve.router.queue.priorities import granted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from baton_serve.core.protocol.openai.choices import Choices
    from baton_serve.router.pool import Route, Worker
    from baton_serve.router.queue.worker_queue import Waiter, WorkerQueue
    from baton_serve.router.request.client_request import ClientRequest
    from baton_serve.router.services import Services


def check_requests(services: Services, num_bodies: int) -> None:
    """Raise RateLimitError if too many requests are live. ``num_bodies``: requests whose bodies are incomplete."""
    if services.active.num_choices + num_bodies >= services.settings.max_requests:
        raise RateLimitError("Too many requests are running.", retry_after_s=retry_after_s(services))


def check_choices(services: Services, choices: Choices) -> None:
    """Raise BadRequestError if a request asks for too many answers, RateLimitError if it does now."""
    num, settings = choices.num_computed, services.settings
    limit = min(settings.max_choices, settings.max_requests)
    if num > limit:
        name = "max_choices" if limit == settings.max_choices else "max_requests"
        raise BadRequestError(
            f"At most {limit} answers in a request (the router's setting {name}), and this one asks for {num}.",
            param="prompt" if choices.prompts else "n" if choices.best_of == choices.n else "best_of",
            code="too_many_choices",
        )
    if services.active.num_choices + num > settings.max_requests:
        raise RateLimitError("Too many requests are running.", retry_after_s=retry_after_s(services))


def check_queue(services: Services, priority: int | None) -> None:
    """Raise RateLimitError if the request would be refused whatever its body is.

    ``priority`` None: only the body tells the priority, so the most urgent one that is granted is assumed.
    """
    most_urgent = granted(services.settings.client_priority, -MAX_PRIORITY) if priority is None else priority
    if is_full(services, 0) and next(less_urgent(services, most_urgent), None) is None:
        raise RateLimitError("Too many requests are waiting.", retry_after_s=retry_after_s(services))


def num_at_once(services: Services, asked: ClientRequest) -> int:
    """How many answers of a request wait for workers, or are computed, at the same time.

    Those of one request get half of the places at most, so that it leaves some for others, however many it asks for.
    """
    choices = asked.choices
    if choices is None:
        return 1
    route = services.pool.route(asked.model)
    num = min(choices.num_computed, _share(route.decode))
    if not route.prefill or not (choices.prompts or _each_is_prefilled(asked, route)):
        return num
    return min(num, _share(route.prefill))


def _each_is_prefilled(asked: ClientRequest, route: Route) -> bool:
    """Whether P may be asked once for each answer to a prompt. Blocks of other engines than ours have one reader."""
    if not asked.splits:
        return asked.is_about_prompt
    return asked.max_new_tokens == 1 or any(not worker.kind.shares_blocks for worker in route.prefill)


def _share(workers: Iterable[Worker]) -> int:
    return max(1, sum(worker.limit for worker in workers) // 2)


def make_room(services: Services, model: str, priority: int, num_bytes: int, num: int = 1) -> None:
    """Make room for a request of which ``num`` answers may wait, by displacing others if necessary.

    Raises RateLimitError, or UnavailableError if no worker could serve it.
    """
    if not is_full(services, num_bytes, num):
        return
    displaced: list[Waiter] = []
    waiters, freed_bytes = less_urgent(services, priority), 0
    while is_full(services, num_bytes, num, len(displaced), freed_bytes):
        waiter = next(waiters, None)
        if waiter is None:  # none has been displaced yet, so none loses its place in vain
            raise _refusal(services, model)
        displaced.append(waiter)
        freed_bytes += waiter.num_bytes
    for waiter in displaced:
        services.metrics.num_displaced += 1
        waiter.fail(
            RateLimitError("A more urgent request took this one's place.", retry_after_s=retry_after_s(services))
        )


def is_full(services: Services, num_bytes: int, num: int = 1, num_freed: int = 0, freed_bytes: int = 0) -> bool:
    """Whether one more request, with a body of ``num_bytes``, is too many if it waits.

    Each of its ``num`` answers waits for itself. A body of any size may wait alone, and so may any number of answers.

    ``num_freed`` and ``freed_bytes``: number and bytes of the requests that would be displaced.
    """
    prefill, held, settings = services.prefill_queue, services.held_queue, services.settings
    num_waiting = len(prefill) + len(held) - num_freed
    if num_waiting > 0 and num_waiting + num > settings.max_queue_length:
        return True
    waiting = prefill.num_bytes + held.num_bytes - freed_bytes
    return waiting > 0 and waiting + num_bytes > settings.max_queued_bytes


def less_urgent(services: Services, priority: int) -> Iterator[Waiter]:
    """The waiting requests that one of this priority may displace, the first to be displaced first."""
    return heapq.merge(
        services.prefill_queue.less_urgent(priority), services.held_queue.less_urgent(priority), reverse=True
    )


def retry_after_s(services: Services) -> float:
    """Seconds, from 1 to 60, after which all requests that wait now should have found room: sent as Retry-After."""
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
