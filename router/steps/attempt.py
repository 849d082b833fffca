"""One attempt of a leg, whichever leg it is: find a worker with room, ask it, and take what it answers.

``run`` makes the attempts, one after the other; ``judge`` says what is next after one that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.connection import Pieces
from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.engines.port import Engine, Engines
from baton_serve.router.placement import PickDecode, PickPrefill, SkipPrefillRule
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.pool.liveness import Liveness
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.queue.queues import Queues
from baton_serve.router.queue.retry_budget import RetryBudget
from baton_serve.router.request.attempts import Decision
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.failure_table import Leg
from baton_serve.router.request.states import Event
from baton_serve.router.settings import RouterSettings
from baton_serve.router.steps.failures import TryAnother
from baton_serve.router.steps.waiting import Waiting
from baton_serve.router.telemetry.metrics.metrics import Metrics
from baton_serve.router.upstream.missing_engines import MissingEngines
from baton_serve.router.upstream.whole_answers import read_whole
from baton_serve.router.upstream.worker_errors import from_worker, may_try_another

T = TypeVar("T")


@dataclass(slots=True)
class Legs:
    """How the workers of a router are found and asked, the same for all requests."""

    settings: RouterSettings
    upstream: HttpClient
    #: By kind of worker: see ``Engine``.
    engines: Engines
    #: The header with the internal token; empty if there is no token.
    token_headers: tuple[tuple[str, str], ...]
    pool: WorkerPool
    waiting: Waiting
    queues: Queues
    pick_prefill: PickPrefill
    pick_decode: PickDecode
    skip_rule: SkipPrefillRule
    lease_limit: LeaseLimit
    missing_engines: MissingEngines
    liveness: Liveness
    retry_budget: RetryBudget
    metrics: Metrics

    def headers_for(self, worker: Worker) -> tuple[tuple[str, str], ...]:
        """The headers that prove to a worker that one of its own routers is calling.

        A worker that is not in the registry gets none: the engine at an address from the command line may not be
        Baton's, and must not learn the internal token. The engine of a vLLM server never is Baton's.
        """
        if not worker.kind.may_be_ours:
            return ()
        return self.token_headers if worker.engine_id or self.settings.trust_static_workers else ()


class LegAttempt(Generic[T]):
    """One attempt for one request. Answers with a ``T``.

    An object, not functions inside of functions: docs/hot-path.md says why such functions, once they are compiled,
    would keep the request in memory.
    """

    __slots__ = ("_legs", "engine", "leg", "request", "sent", "worker")

    def __init__(self, legs: Legs, request: Exchange, leg: Leg, sent: Event) -> None:
        """``sent``: what happens to the request when the worker that was found is asked."""
        self._legs = legs
        self.request = request
        self.leg = leg
        self.sent = sent

    async def find(self) -> bool:
        """Wait for a worker with room, and reserve a place on it. Returns False if the leg is not needed.

        Raises BlocksLost and ApiError.
        """
        raise NotImplementedError

    async def ask(self) -> T | Decision:
        """Ask the worker, and take its answer, or decide that it is of no use.

        Raises CallError, TryAnother, BlocksLost, and any ApiError that the client is to be sent.
        """
        raise NotImplementedError

    def _found(self, worker: Worker) -> None:
        self.worker: Worker = worker
        self.engine: Engine = self._legs.engines[worker.kind.name]

    def _send(
        self,
        headers: tuple[tuple[str, str], ...],
        body: bytes | Pieces,
        timeout_s: float,
        patience: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        once: bool = False,
        sending: Callable[[], None] | None = None,
    ) -> Coroutine[Any, Any, HttpAnswer]:
        """Send the request to the worker; see ``HttpClient`` for ``patience``, ``once`` and ``sending``."""
        request, legs = self.request, self._legs
        return legs.upstream.request(
            "POST",
            self.worker.url,
            request.asked.path,
            (*request.headers(), *headers, *legs.headers_for(self.worker)),
            body,
            timeout_s,
            patience,
            once=once,
            sending=sending,
        )

    async def _whole(self, answer: HttpAnswer, timeout_s: float) -> bytes:
        """The body of an answer that comes in one piece. An answer that is no 200 is raised, as ``ask`` does."""
        data = await read_whole(answer, self._legs.settings.max_answer_bytes, timeout_s)
        if answer.status == 200:
            return data
        self.request.held.unread_prefill = None
        error = from_worker(answer.status, data, answer.retry_after, as_sent=self.request.asked.passed_on)
        raise TryAnother(error) if may_try_another(error) else error
