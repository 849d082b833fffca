"""One attempt of a leg, whichever leg it is: find a worker with room, ask it, and take what it answers.

``run`` makes the attempts, one after the other; ``judge`` says what is next after one that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from baton_serve.router.steps.failures import TryAnother
from baton_serve.router.upstream.whole_answers import read_whole
from baton_serve.router.upstream.worker_errors import from_worker, may_try_another

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from baton_serve.core.net.client.answer import HttpAnswer
    from baton_serve.core.net.client.connection import Pieces
    from baton_serve.core.net.client.http_client import HttpClient
    from baton_serve.router.engines.port import Engine, Engines
    from baton_serve.router.pool import Worker
    from baton_serve.router.request.attempts import Decision
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.request.failure_table import Leg
    from baton_serve.router.request.states import Event
    from baton_serve.router.settings import RouterSettings

T = TypeVar("T")


class WorkerCalls:
    """How the workers of a router are asked, the same for all requests."""

    __slots__ = ("_headers", "_trusts_static_workers", "engines", "settings", "upstream")

    def __init__(
        self,
        settings: RouterSettings,
        upstream: HttpClient,
        engines: Engines,
        token_headers: tuple[tuple[str, str], ...],
    ) -> None:
        """``token_headers``: the header with the internal token; empty if there is no token."""
        self.settings = settings
        self.upstream = upstream
        #: What differs between the engines behind the workers.
        self.engines = engines
        self._headers = token_headers
        self._trusts_static_workers = settings.trust_static_workers

    def headers_for(self, worker: Worker) -> tuple[tuple[str, str], ...]:
        """The headers that prove to a worker that one of its own routers is calling.

        A worker that is not in the registry gets none: the engine at an address from the command line may not be
        Baton's, and must not learn the internal token. The engine of a vLLM server never is Baton's.
        """
        if not worker.kind.may_be_ours:
            return ()
        return self._headers if worker.engine_id or self._trusts_static_workers else ()


class LegAttempt(Generic[T]):
    """One attempt for one request. Answers with a ``T``.

    An object, not functions inside of functions: docs/hot-path.md says why such functions, once they are compiled,
    would keep the request in memory.
    """

    __slots__ = ("_calls", "engine", "request", "worker")

    def __init__(self, calls: WorkerCalls, request: Exchange) -> None:
        self._calls = calls
        self.request = request

    @property
    def leg(self) -> Leg:
        """Which leg it is."""
        raise NotImplementedError

    @property
    def sent(self) -> Event:
        """What happens to the request when the worker that was found is asked."""
        raise NotImplementedError

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
        self.engine: Engine = self._calls.engines[worker.kind.name]

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
        request, calls = self.request, self._calls
        return calls.upstream.request(
            "POST",
            self.worker.url,
            request.asked.path,
            (*request.headers(), *headers, *calls.headers_for(self.worker)),
            body,
            timeout_s,
            patience,
            once=once,
            sending=sending,
        )

    async def _whole(self, answer: HttpAnswer, timeout_s: float) -> bytes:
        """The body of an answer that comes in one piece. An answer that is no 200 is raised, as ``ask`` does."""
        data = await read_whole(answer, self._calls.settings.max_answer_bytes, timeout_s)
        if answer.status == 200:
            return data
        self.request.held.unread_prefill = None
        error = from_worker(answer.status, data, answer.retry_after, as_sent=self.request.asked.passed_on)
        raise TryAnother(error) if may_try_another(error) else error
