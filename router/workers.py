"""The workers this router knows, what is in flight on each from here, their room and their health.

Membership comes from the registry and from static lists. Health is passive: a worker to which no connection can be
made is left out until a probe of ``/health`` succeeds (``health.py``). Everything runs on one event loop.

A load report counts for ``LOAD_TTL_S``. After that the registry is away, or nothing changed anywhere (it tells only
changes); what this router itself has in flight then is a better guess than a report that may be of a busier time and
would keep the worker full for ever. At worst the worker queues.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.errors import NotFoundError, UnavailableError
from protocol.worker import Role, WorkerLoad
from router.breaker import Breaker, BreakerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from protocol.worker import WorkerStatus

#: A prefill worker is given this many times what it runs at once, so that it never waits for the router.
PREFILL_QUEUE_FACTOR = 2
#: Seconds that a report of load counts: twelve announcements, and as long as a silent worker stays in the registry.
LOAD_TTL_S = 3.0
#: Failures in a row that open a worker's breaker, unless the settings say otherwise.
BREAKER_FAILURES = 5
#: Routes remembered, one per model name asked for.
MAX_ROUTES = 256


@dataclass(slots=True, eq=False)
class Worker:
    """One worker as this router sees it."""

    worker_id: str
    url: str
    role: Role
    #: Requests this router sends at once.
    limit: int
    engine_id: str = ""
    #: None: not told yet, any model is tried.
    models: tuple[str, ...] | None = None
    compatibility_hash: str = ""
    internal_url: str = ""
    #: Ranks of its engine.
    tp: int = 1
    #: Its KV cache; 0: not told.
    num_blocks: int = 0
    #: Tokens in a block; 0: not told.
    block_size: int = 0
    load: WorkerLoad = field(default_factory=WorkerLoad)
    #: Requests sent from here and not finished.
    in_flight: int = 0
    #: The same when ``load`` was reported.
    in_flight_at_load: int = 0
    #: When that was, and whether it was so long ago that it does not count.
    heard_s: float = 0.0
    load_is_old: bool = False
    healthy: bool = True
    #: Somebody drained it through this router, and it has not announced yet that it drains.
    left_out: bool = False
    #: It has been told so itself: its next announcement of it is what counts, also when others resume it.
    drain_told: bool = False
    #: Connections that failed since the last one that worked.
    num_failures: int = 0
    #: Whether requests that reach it fail.
    breaker: Breaker = field(default_factory=lambda: Breaker(BREAKER_FAILURES))

    @property
    def occupied(self) -> int:
        """Requests on the worker now: what it reported, corrected by what this router did since."""
        if self.load_is_old:
            return self.in_flight
        load = self.load
        reported = load.running + load.waiting + load.reading
        return max(self.in_flight, reported + self.in_flight - self.in_flight_at_load)

    @property
    def room(self) -> int:
        """Requests it may be sent now; negative when it was told of more by others."""
        return self.limit - self.occupied

    @property
    def takes_work(self) -> bool:
        """It can be reached and does not drain."""
        return self.healthy and not self.draining

    @property
    def draining(self) -> bool:
        """It is given nothing new: it says so itself, or somebody said so here."""
        return self.left_out or self.load.draining

    def serves(self, model: str) -> bool:
        """It has the model, or has not said which it has."""
        return self.models is None or model in self.models

    def report(self, load: WorkerLoad, now_s: float) -> None:
        """Take over a new load report."""
        self.load = load
        if load.draining and self.drain_told:
            self.left_out = self.drain_told = False
        self.in_flight_at_load = self.in_flight
        self.heard_s = now_s
        self.load_is_old = False

    def __repr__(self) -> str:
        health = "" if self.healthy else f" unreachable x{self.num_failures}"
        return f"<Worker {self.worker_id} {self.role} {self.occupied}/{self.limit}{health}>"


@dataclass(frozen=True, slots=True)
class Route:
    """Who may serve a model. ``single``: the workers of ``decode`` do both parts, nobody is asked to prefill."""

    prefill: tuple[Worker, ...]
    decode: tuple[Worker, ...]
    single: bool
    _by_hash: dict[str, tuple[Worker, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def readers(self, source: Worker) -> tuple[Worker, ...]:
        """The decode workers that can read ``source``'s blocks."""
        digest = source.compatibility_hash
        readers = self._by_hash.get(digest)
        if readers is None:
            readers = tuple(worker for worker in self.decode if worker.compatibility_hash == digest)
            self._by_hash[digest] = readers
        return readers


class WorkerPool:
    """All known workers. ``on_room`` is called when a request may find room, ``on_gone`` with a lost engine's id.

    Those added by URL have none; then it is their own id.
    """

    def __init__(
        self,
        default_limit: int,
        clock: Callable[[], float] = time.monotonic,
        breaker_failures: int = BREAKER_FAILURES,
    ) -> None:
        self._default_limit = default_limit
        self._breaker_failures = breaker_failures
        self._clock = clock
        self._sweep: asyncio.TimerHandle | None = None
        self._workers: dict[str, Worker] = {}
        self._static: set[str] = set()
        self._routes: dict[str, Route] = {}
        self.on_room: list[Callable[[], None]] = []
        self.on_gone: list[Callable[[str], None]] = []
        #: Called with each worker that was added by URL.
        self.on_static: list[Callable[[Worker], None]] = []
        #: Called when a worker's breaker opens.
        self.on_opened: list[Callable[[Worker], None]] = []
        self.on_unreachable: list[Callable[[Worker], None]] = []

    def __iter__(self) -> Iterator[Worker]:
        return iter(tuple(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def add_static(self, prefill: Iterable[str], decode: Iterable[str]) -> list[Worker]:
        """Add workers by URL; one in both lists does both. Returns the new ones."""
        roles: dict[str, Role] = dict.fromkeys(prefill, Role.PREFILL)
        for url in decode:
            roles[url] = Role.BOTH if url in roles else Role.DECODE
        added = [Worker(worker_id=url, url=url, role=role, limit=self._default_limit) for url, role in roles.items()]
        for worker in added:
            worker.breaker = Breaker(self._breaker_failures)
            self._workers[worker.worker_id] = worker
            self._static.add(worker.worker_id)
        self._changed()
        for worker in added:
            for listener in self.on_static:
                listener(worker)
        return added

    def remove_static(self, worker: Worker) -> None:
        """Forget a worker that was added by URL; what runs on it goes on."""
        self._static.remove(worker.worker_id)
        self._remove(worker.worker_id)
        self.room_changed()

    def is_static(self, worker: Worker) -> bool:
        """It was added by URL: the registry says nothing about it."""
        return worker.worker_id in self._static

    def apply(self, statuses: Iterable[WorkerStatus]) -> None:
        """Take over the registry's list: new workers come, missing ones go, loads are noted. Needs a running loop."""
        seen = set(self._static)
        for status in statuses:
            seen.add(status.record.worker_id)
            self._note(status)
        for worker_id in self._workers.keys() - seen:
            self._remove(worker_id)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(LOAD_TTL_S, self._look_for_old_loads)
        self.room_changed()

    def forget_old_loads(self) -> bool:
        """Count only this router's own requests where nothing was heard for ``LOAD_TTL_S``; True if all are so."""
        heard_since_s = self._clock() - LOAD_TTL_S
        for worker in self._workers.values():
            worker.load_is_old = worker.heard_s <= heard_since_s
        self.room_changed()
        return all(worker.load_is_old for worker in self._workers.values())

    def _look_for_old_loads(self) -> None:
        self._sweep = None
        if not self.forget_old_loads():
            self._sweep = asyncio.get_running_loop().call_later(LOAD_TTL_S, self._look_for_old_loads)

    def learn_models(self, worker: Worker, models: tuple[str, ...]) -> None:
        """A static worker has said what it serves."""
        worker.models = models
        self._changed()

    def models(self) -> list[str]:
        """Every model somebody serves, sorted."""
        return sorted({model for worker in self._workers.values() for model in worker.models or ()})

    def route(self, model: str) -> Route:
        """Who may serve the model. Raises NotFoundError and UnavailableError."""
        route = self._routes.get(model)
        if route is None:
            route = self._make_route(model)
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            self._routes[model] = route
        return route

    def enter(self, worker: Worker) -> None:
        """A request is sent to the worker."""
        worker.in_flight += 1
        worker.breaker.sent()

    def leave(self, worker: Worker) -> None:
        """It is over there."""
        worker.in_flight -= 1
        worker.breaker.left()
        self.room_changed()

    def unreachable(self, worker: Worker) -> None:
        """No connection could be made: leave it out until a probe succeeds."""
        worker.num_failures += 1
        if worker.healthy and self._workers.get(worker.worker_id) is worker:
            worker.healthy = False
            for listener in self.on_unreachable:
                listener(worker)
            self.room_changed()  # who waits for it may now go where it would not have gone

    def failed(self, worker: Worker) -> None:
        """A request reached the worker and failed in a way that is the worker's fault."""
        if worker.breaker.failed(self._clock()) and self.knows(worker):
            for listener in self.on_opened:
                listener(worker)
            self.room_changed()  # as above

    def worked(self, worker: Worker) -> None:
        """A request succeeded there."""
        if worker.breaker.succeeded():
            self.room_changed()

    def probe_failed(self, worker: Worker) -> None:
        """``/health`` did not answer. Leaves a worker alone that only its breaker keeps out: it may be the last one."""
        if worker.healthy and worker.breaker.state is BreakerState.OPEN:
            worker.breaker.probe_failed(self._clock())
        else:
            self.unreachable(worker)

    def probe_wait_s(self, worker: Worker) -> float:
        """Seconds until a worker whose breaker is open should be probed."""
        return worker.breaker.wait_s(self._clock())

    def recovered(self, worker: Worker) -> None:
        """A probe succeeded."""
        worker.healthy = True
        worker.num_failures = 0
        worker.breaker.probe_answered()
        self.room_changed()

    def leave_out(self, worker: Worker) -> None:
        """Send it nothing new; see ``take_back`` and ``drain_told``."""
        worker.left_out, worker.drain_told = True, False
        self.room_changed()  # who waits for it may now go where it would not have gone

    def drain_told(self, worker: Worker) -> None:
        """The worker knows that it drains: as soon as it announces it, only its own word counts."""
        if worker.left_out:
            worker.left_out, worker.drain_told = not worker.load.draining, not worker.load.draining

    def take_back(self, worker: Worker) -> None:
        """Send it work again, once it announces that it takes some."""
        worker.left_out = worker.drain_told = False
        self.room_changed()

    def get(self, worker_id: str) -> Worker | None:
        """The worker of that id, if it is known."""
        return self._workers.get(worker_id)

    def knows(self, worker: Worker) -> bool:
        """It is still the current entry of its id."""
        return self._workers.get(worker.worker_id) is worker

    def room_changed(self) -> None:
        """Somebody who waits may find room now."""
        for listener in self.on_room:
            listener()

    def _note(self, status: WorkerStatus) -> None:
        record = status.record
        worker = self._workers.get(record.worker_id)
        if worker is not None and worker.engine_id != record.engine_id:
            self._remove(record.worker_id)
            worker = None
        if worker is None:
            factor = PREFILL_QUEUE_FACTOR if record.role is Role.PREFILL else 1
            worker = self._workers[record.worker_id] = Worker(
                worker_id=record.worker_id,
                url=record.url,
                role=record.role,
                limit=record.max_num_seqs * factor if record.max_num_seqs > 0 else self._default_limit,
                engine_id=record.engine_id,
                models=(record.model,),
                compatibility_hash=record.compatibility_hash,
                internal_url=record.internal_url,
                tp=record.tp,
                breaker=Breaker(self._breaker_failures),
                num_blocks=record.num_blocks,
                block_size=record.block_size,
            )
            self._routes.clear()
        if status.load is not worker.load:  # the list repeats what it told before
            worker.report(status.load, self._clock())

    def _remove(self, worker_id: str) -> None:
        worker = self._workers.pop(worker_id)
        self._routes.clear()
        for listener in self.on_gone:
            listener(worker.engine_id or worker.worker_id)

    def _changed(self) -> None:
        self._routes.clear()
        self.room_changed()

    def _make_route(self, model: str) -> Route:
        if not self._workers:
            raise UnavailableError("No worker is known yet.", retry_after_s=1)
        serving = [worker for worker in self._workers.values() if worker.serves(model)]
        if not serving:
            raise NotFoundError(f"The model '{model}' does not exist.", code="model_not_found", param="model")
        prefill = tuple(worker for worker in serving if worker.role is Role.PREFILL)
        decode = tuple(worker for worker in serving if worker.role is Role.DECODE)
        both = tuple(worker for worker in serving if worker.role is Role.BOTH)
        if not decode and not prefill:
            return Route((), both, single=True)
        return self._paired(prefill or both, decode + both)

    @staticmethod
    def _paired(prefill: tuple[Worker, ...], decode: tuple[Worker, ...]) -> Route:
        """Only prefill workers that somebody can read from."""
        hashes = {worker.compatibility_hash for worker in decode}
        sources = tuple(worker for worker in prefill if worker.compatibility_hash in hashes)
        if not decode:
            raise UnavailableError("No decode worker is known.", retry_after_s=1)
        if not sources:
            why = "their models, dtypes or block sizes differ" if prefill else "there is none"
            raise UnavailableError(
                f"No prefill worker is known that a decode worker can read from: {why}.", retry_after_s=1
            )
        return Route(sources, decode, single=False)
