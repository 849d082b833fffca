"""Which requests are admitted, which are refused, and which are displaced by more urgent ones.

Waiting requests are bounded in number (``max_queue_length``) and in bytes of bodies (a constant). At a bound
a new request displaces waiting ones that are less urgent and whose clients have been sent nothing yet: the least urgent
first, among equals the youngest, until there is room. If they are too few, it is refused and none is displaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.core.protocol.errors import ApiError, BadRequestError, RateLimitError, UnavailableError
from baton_serve.core.protocol.openai.choices import Choices
from baton_serve.core.protocol.openai.requests import MAX_PRIORITY
from baton_serve.router.pool import Route, Worker
from baton_serve.router.queue.priorities import granted
from baton_serve.router.queue.queues import Queues
from baton_serve.router.queue.worker_queue import Waiter
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.settings import RouterSettings
from baton_serve.router.telemetry.metrics.metrics import Metrics


class Admission:
    """Admits or refuses requests, by how many are live and how many wait."""

    def __init__(self, settings: RouterSettings, active: ActiveRequests, queues: Queues, metrics: Metrics) -> None:
        self._settings = settings
        self._active = active
        self._queues = queues
        self._metrics = metrics

    def check_requests(self, num_bodies: int) -> None:
        """Raise RateLimitError if too many requests are live. ``num_bodies``: requests whose bodies are incomplete."""
        if self._active.num_choices + num_bodies >= self._settings.max_requests:
            raise self._too_many("running")

    def check_choices(self, choices: Choices) -> None:
        """Raise BadRequestError if the request may never ask for so many answers, RateLimitError if it may not now."""
        num, settings = choices.num_computed, self._settings
        limit = min(settings.max_choices, settings.max_requests)
        if num > limit:
            name = "max_choices" if limit == settings.max_choices else "max_requests"
            raise BadRequestError(
                f"At most {limit} answers in a request (the router's setting {name}), and this one asks for {num}.",
                param="prompt" if choices.prompts else "n" if choices.best_of == choices.n else "best_of",
                code="too_many_choices",
            )
        if self._active.num_choices + num > settings.max_requests:
            raise self._too_many("running")

    def check_queue(self, priority: int | None) -> None:
        """Raise RateLimitError if the request would be refused whatever its body is.

        ``priority`` None: only the body tells the priority, so the most urgent one that is granted is assumed.
        """
        most_urgent = granted(self._settings.client_priority, -MAX_PRIORITY) if priority is None else priority
        if self._is_full(0) and next(self._queues.less_urgent(most_urgent), None) is None:
            raise self._too_many("waiting")

    def make_room(self, route: Route, priority: int, num_bytes: int, num: int = 1) -> None:
        """Make room for a request of which ``num`` answers may wait, by displacing others if necessary.

        Raises RateLimitError, or UnavailableError if no worker of ``route`` could serve it.
        """
        if not self._is_full(num_bytes, num):
            return
        displaced: list[Waiter] = []
        waiters, freed_bytes = self._queues.less_urgent(priority), 0
        while self._is_full(num_bytes, num, len(displaced), freed_bytes):
            waiter = next(waiters, None)
            if waiter is None:  # none has been displaced yet, so none loses its place in vain
                raise self._refusal(route)
            displaced.append(waiter)
            freed_bytes += waiter.num_bytes
        for waiter in displaced:
            self._metrics.num_displaced += 1
            retry_s = self._queues.retry_after_s()
            waiter.fail(RateLimitError("A more urgent request took this one's place.", retry_after_s=retry_s))

    def _is_full(self, num_bytes: int, num: int = 1, num_freed: int = 0, freed_bytes: int = 0) -> bool:
        """Whether one more request, with a body of ``num_bytes``, is too many if it waits.

        Each of its ``num`` answers waits for itself. A body of any size may wait alone, and so may any number of
        answers.

        ``num_freed`` and ``freed_bytes``: number and bytes of the requests that would be displaced.
        """
        num_waiting = len(self._queues) - num_freed
        if num_waiting > 0 and num_waiting + num > self._settings.max_queue_length:
            return True
        waiting_bytes = self._queues.num_bytes - freed_bytes
        return waiting_bytes > 0 and waiting_bytes + num_bytes > self._settings.max_queued_bytes

    def _refusal(self, route: Route) -> ApiError:
        if not route.can_decode or (route.prefill and not route.can_prefill):
            retry_s = self._queues.retry_after_s()
            return UnavailableError("No worker for this request can be reached.", retry_after_s=retry_s)
        return self._too_many("waiting")

    def _too_many(self, what: str) -> RateLimitError:
        return RateLimitError(f"Too many requests are {what}.", retry_after_s=self._queues.retry_after_s())


def num_at_once(asked: ClientRequest, route: Route) -> int:
    """How many answers of a request wait for workers, or are computed, at the same time.

    One request gets at most half of the places, however many answers it asks for, so that others get some.
    """
    choices = asked.choices
    if choices is None:
        return 1
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
    return max(1, sum(worker.usage.limit for worker in workers) // 2)
