"""All workers that this router knows.

Membership comes from the registry and from static lists; of vLLM servers that announce themselves, from
``router/vllm/servers/announced``. Health is passive: a worker to which no connection can be
made is excluded until a probe of ``/health`` succeeds (``router/pool/health.py``). Everything runs on one event loop.

A load report counts for ``LOAD_TTL_S``. If there is no newer one, the registry or the worker is unreachable. What this
router has in flight is then a better guess than a report from a busier time, which would make the worker look full for
ever. At worst requests queue in the worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from baton_serve.core.protocol.vllm_server import VllmRecord
from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerStatus
from baton_serve.core.protocol.worker_address import WorkerAddress, worker_address
from baton_serve.router.pool.breaker import BREAKER_FAILURES, Breaker, BreakerState
from baton_serve.router.pool.kind import BATON, PLAIN, WorkerKind
from baton_serve.router.pool.model_card import ModelFacts, announced, any_defaults, merged
from baton_serve.router.pool.reservation import Reservation
from baton_serve.router.pool.route import Route, Routes
from baton_serve.router.pool.static_worker import announced_vllm, queue_factor, static_worker
from baton_serve.router.pool.usage import Usage
from baton_serve.router.pool.worker import Worker

T = TypeVar("T")

#: Seconds that a load report counts: twelve announcements, and as long as a silent worker stays in the registry.
LOAD_TTL_S = 3.0
#: Bound on the ids of unknown workers that other routers excluded: the most workers there may be.
MAX_LEFT_OUT = 10_000


class WorkerPool:
    """All known workers. ``on_room`` is called when a request may find room, ``on_gone`` with the id of an engine that
    left.

    A worker that was added has no engine id; then ``on_gone`` is called with its own id.
    """

    def __init__(
        self,
        default_limit: int,
        clock: Callable[[], float] = time.monotonic,
        breaker_failures: int = BREAKER_FAILURES,
        vllm: WorkerKind | None = None,
    ) -> None:
        """``vllm``: the kind of the servers that announce themselves, or have an address that says vLLM. None: a pool
        that is given none.
        """
        self._default_limit = default_limit
        self._breaker_failures = breaker_failures
        self._vllm = vllm
        self._clock = clock
        self._sweep: asyncio.TimerHandle | None = None
        self._workers: dict[str, Worker] = {}
        #: Ids of the workers that ``apply`` is not told of.
        self._static: set[str] = set()
        #: Ids of workers that other routers excluded before this one knew them, the oldest first.
        self._left_out: dict[str, None] = {}
        self._routes = Routes(self._workers.values)
        self.on_room: list[Callable[[], None]] = []
        self.on_gone: list[Callable[[str], None]] = []
        #: Called with the id of an engine, after ``on_gone``, if another one answers at its address.
        self.on_replaced: list[Callable[[str], None]] = []
        #: Called when there are new workers, or a worker has reported which models it serves.
        self.on_came: list[Callable[[], None]] = []
        #: Called with each worker that ``apply`` was not told of: one with an address, or an announced vLLM server.
        self.on_static: list[Callable[[Worker], None]] = []
        #: Called with each worker that is no longer known.
        self.on_left: list[Callable[[Worker], None]] = []
        #: Called when a worker's breaker opens.
        self.on_opened: list[Callable[[Worker], None]] = []
        #: Called with each worker that is excluded until it answers, and with the reason.
        self.on_unreachable: list[Callable[[Worker, str], None]] = []

    def __iter__(self) -> Iterator[Worker]:
        return iter(tuple(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def add_static(self, prefill: Iterable[str], decode: Iterable[str]) -> list[Worker]:
        """Add workers by address; one in both lists gets the role BOTH. Returns the new workers."""
        roles: dict[str, Role] = dict.fromkeys(prefill, Role.PREFILL)
        for url in decode:
            roles[url] = Role.BOTH if url in roles else Role.DECODE
        return self.add_addresses({worker_address(url): role for url, role in roles.items()})

    def add_addresses(self, roles: Mapping[WorkerAddress, Role], given: WorkerAddress | None = None) -> list[Worker]:
        """Add the workers at these addresses. ``given``: the address with a host name that stands for all of them."""
        added = [
            static_worker(address, role, self._default_limit, self._vllm_kind if address.is_vllm else PLAIN, given)
            for address, role in roles.items()
        ]
        self._add(added)
        return added

    def add_announced(self, record: VllmRecord) -> Worker:
        """Add a vLLM server that announces itself, until ``remove_static``. There must be no worker at its URL."""
        worker = announced_vllm(record, self._default_limit, self._vllm_kind)
        self._add([worker])
        return worker

    @property
    def _vllm_kind(self) -> WorkerKind:
        assert self._vllm is not None, "a pool without vLLM servers"
        return self._vllm

    def _add(self, added: list[Worker]) -> None:
        for worker in added:
            self._know(worker)
            self._static.add(worker.worker_id)
        self._changed()
        for worker in added:
            for listener in self.on_static:
                listener(worker)

    def remove_static(self, worker: Worker) -> None:
        """Forget a worker that was added; its running requests finish."""
        self._static.remove(worker.worker_id)
        self._remove(worker.worker_id)
        self.room_changed()

    def given_as(self, worker_id: str) -> list[Worker]:
        """The workers that were added at the address with this id: several, if its host name has several addresses."""
        return [worker for worker in self if worker.given is not None and worker.given.worker_id == worker_id]

    def forget_address(self, worker_id: str) -> list[Worker]:
        """Forget what was added at the address with this id: one worker, or all that its host name stands for."""
        found = self.given_as(worker_id)
        for worker in found:
            self.remove_static(worker)
        return found

    def apply(self, statuses: Iterable[WorkerStatus]) -> None:
        """Take over the registry's list: add new workers, remove missing ones, note loads. Needs a running loop."""
        seen, came = set(self._static), False
        for status in statuses:
            seen.add(status.record.worker_id)
            came = self._note(status) or came
        for worker_id in self._workers.keys() - seen:
            self._remove(worker_id)
        if came:
            self._tell_who_came()
        self._watch_for_old_loads()
        self.room_changed()

    def withdrew(self, status: WorkerStatus) -> None:
        """Note the last words of a worker that has left the registry by itself: did it drain, or has it failed?"""
        worker = self._workers.get(status.record.worker_id)
        if worker is not None and worker.engine_id == status.record.engine_id:
            worker.standing.has_withdrawn = status.load.draining

    def reported(self, worker: Worker, load: WorkerLoad, full_at: int | None, num_sent: int) -> None:
        """Take over the load of a worker that was asked for it. Needs a running loop.

        ``full_at``: see ``Usage``. ``num_sent``: requests that this router had in flight there when it asked. Requests
        may have ended or come since, so the larger of ``num_sent`` and the number now counts as this router's own.
        """
        was = worker.usage.load, worker.usage.full_at, worker.usage.load_is_old
        worker.report(load, self._clock(), max(num_sent, worker.usage.in_flight))
        worker.usage.full_at = full_at
        self._watch_for_old_loads()
        if was != (load, full_at, False):
            worker.changed()
            self.room_changed()

    def learned(self) -> None:
        """Note that the router has learned which workers can be paired, or which tokens a worker computes."""
        self._changed()

    def engine_started(self, worker: Worker, engine_id: str) -> None:
        """Note that another engine answers at a worker's address: what the one before had in its cache is gone.

        ``engine_id`` is the new one's; empty: not known.
        """
        old = worker.engine_ids or (worker.key,)
        worker.engine_id, worker.server.num_unreadable = engine_id, 0
        worker.changed()
        if self._tell_gone(old, worker):
            for listener in self.on_replaced:
                for one in old:
                    listener(one)

    def _watch_for_old_loads(self) -> None:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(LOAD_TTL_S, self._look_for_old_loads)

    def forget_old_loads(self) -> bool:
        """Ignore load reports older than ``LOAD_TTL_S``: only this router's own requests count then.

        Returns True if all reports are old.
        """
        heard_since_s = self._clock() - LOAD_TTL_S
        for worker in self._workers.values():
            if worker.usage.heard_s <= heard_since_s:
                worker.forget_report()
        self.room_changed()
        return all(worker.usage.load_is_old for worker in self._workers.values())

    def _look_for_old_loads(self) -> None:
        self._sweep = None
        if not self.forget_old_loads():
            self._sweep = asyncio.get_running_loop().call_later(LOAD_TTL_S, self._look_for_old_loads)

    def learn_models(self, worker: Worker, facts: dict[str, ModelFacts]) -> None:
        """Note which models a static worker has reported to serve, and the facts of each."""
        worker.models, worker.facts = tuple(facts), facts
        self._changed()

    def models(self) -> list[str]:
        """All models that are served: base models first, then adapters (LoRA), each sorted."""
        served = {model for worker in self._workers.values() for model in worker.models or ()}
        return sorted(served, key=lambda model: (bool(self.facts(model).parent), model))

    def facts(self, model: str) -> ModelFacts:
        """The facts about a model, merged over the workers that serve it."""
        return merged(self._facts(model))

    def sampling_defaults(self, model: str) -> Mapping[str, float]:
        """What the model samples with where a request says nothing. Asks no more workers than it must."""
        return any_defaults(self._facts(model)) or {}

    def _facts(self, model: str) -> Iterator[ModelFacts]:
        return (worker.facts[model] for worker in self._workers.values() if model in worker.facts)

    def route(self, model: str) -> Route:
        """The workers that may serve the model. Raises NotFoundError and UnavailableError."""
        return self._routes.of(model)

    def candidates(self, model: str) -> Route | None:
        """As ``route``, for an admitted request. None: no worker may serve it now, but others may register."""
        return self._routes.candidates(model)

    def enter(self, worker: Worker, num_blocks: int = 0) -> Reservation:
        """Reserve a place on the worker for a request that will take ``num_blocks`` blocks."""
        worker.usage.in_flight += 1
        worker.usage.held_blocks += num_blocks
        trial = worker.standing.breaker.sent()
        for watcher in worker.watchers:  # as ``changed``, without a call
            watcher.add(worker)
        return Reservation(worker, num_blocks, trial)

    def leave(self, reservation: Reservation) -> None:
        """Release a request's place: it is over on that worker."""
        worker = reservation.worker
        worker.usage.in_flight -= 1
        worker.usage.held_blocks -= reservation.num_blocks
        worker.standing.breaker.left(reservation.trial)
        for watcher in worker.watchers:
            watcher.add(worker)
        self.room_changed()

    def unreachable(self, worker: Worker, why: str = "cannot be reached") -> None:
        """Until a probe succeeds, exclude a worker that refused connections or has no engine."""
        worker.standing.num_failures += 1
        if worker.standing.healthy and self._workers.get(worker.worker_id) is worker:
            worker.standing.healthy = False
            worker.changed()
            for listener in self.on_unreachable:
                listener(worker, why)
            self.room_changed()  # requests that wait for it may use other workers now

    def failed(self, worker: Worker) -> None:
        """Note that a request reached the worker and failed through the worker's fault."""
        has_opened = worker.standing.breaker.failed(self._clock())
        worker.changed()
        if has_opened and self.knows(worker):
            for listener in self.on_opened:
                listener(worker)
            self.room_changed()  # as above

    def worked(self, worker: Worker) -> None:
        """Note that a request succeeded on the worker."""
        if worker.standing.breaker.succeeded():
            worker.changed()
            self.room_changed()

    def probe_failed(self, worker: Worker) -> None:
        """Note that ``/health`` did not answer.

        A worker that is excluded only by its breaker stays healthy: it may be the last one.
        """
        if worker.standing.healthy and worker.standing.breaker.state is BreakerState.OPEN:
            worker.standing.breaker.probe_failed(self._clock())
        else:
            self.unreachable(worker)

    def probe_wait_s(self, worker: Worker) -> float:
        """Seconds until a worker whose breaker is open should be probed."""
        return worker.standing.breaker.wait_s(self._clock())

    def recovered(self, worker: Worker) -> None:
        """Note that a probe succeeded."""
        worker.standing.healthy = True
        worker.standing.num_failures = 0
        worker.standing.breaker.probe_answered()
        worker.changed()
        self.room_changed()

    def leave_out(self, worker: Worker) -> None:
        """Send the worker nothing new; see ``take_back`` and ``drain_told``."""
        worker.standing.left_out, worker.standing.drain_told = True, False
        worker.changed()
        self.room_changed()  # requests that wait for it may use other workers now

    def told_left_out(self, worker_id: str, left_out: bool) -> None:
        """Do as another router, which has stopped (``left_out``) or resumed sending new requests to a worker.

        If this router does not know the worker yet, the id is kept until it does.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            self._left_out.pop(worker_id, None)
            if left_out:
                self._left_out[worker_id] = None
            if len(self._left_out) > MAX_LEFT_OUT:
                del self._left_out[next(iter(self._left_out))]
        elif left_out:
            self.leave_out(worker)
        else:
            self.take_back(worker)

    def drain_told(self, worker: Worker) -> None:
        """Note that the worker was asked to drain: once it announces that it drains, only its announcements count."""
        if worker.standing.left_out:
            worker.standing.left_out = worker.standing.drain_told = not worker.usage.load.draining
            worker.changed()

    def take_back(self, worker: Worker) -> None:
        """Send the worker work again, as soon as it no longer announces that it drains."""
        worker.standing.left_out = worker.standing.drain_told = False
        worker.changed()
        self.room_changed()

    def get(self, worker_id: str) -> Worker | None:
        """The worker of that id, if it is known."""
        return self._workers.get(worker_id)

    def with_engine(self, engine_id: str) -> Worker | None:
        """The worker of that engine that has an internal port, if one is known."""
        return next((one for one in self._workers.values() if one.engine_id == engine_id and one.internal_url), None)

    def knows_engine(self, engine_id: str) -> bool:
        """Whether a worker of that engine is known."""
        return any(one.engine_id == engine_id for one in self._workers.values())

    def knows(self, worker: Worker) -> bool:
        """Whether this very worker is known, and not another one under its id."""
        return self._workers.get(worker.worker_id) is worker

    async def until(self, found: Callable[[], T | None], timeout_s: float) -> T:
        """Wait until ``found`` returns something, which it is asked whenever a request may find room, and return that.

        Raises TimeoutError after ``timeout_s``.
        """
        changed = asyncio.Event()
        self.on_room.append(changed.set)
        try:
            async with asyncio.timeout(timeout_s):
                while (wanted := found()) is None:
                    changed.clear()
                    await changed.wait()
            return wanted
        finally:
            self.on_room.remove(changed.set)

    def room_changed(self) -> None:
        """Notify the listeners that a waiting request may find room now."""
        for listener in self.on_room:
            listener()

    def _note(self, status: WorkerStatus) -> bool:
        """Take over one entry of the registry. Returns True if the worker is new."""
        record = status.record
        worker = self._workers.get(record.worker_id)
        if worker is not None and worker.engine_id != record.engine_id:
            self._remove(record.worker_id)
            worker = None
        is_new = worker is None
        if worker is None:
            factor, facts = queue_factor(record.role), announced(record)
            kind = BATON if record.compatibility_hash else PLAIN
            worker = Worker(
                worker_id=record.worker_id,
                url=record.url,
                role=record.role,
                usage=Usage(
                    record.max_num_seqs * factor if record.max_num_seqs > 0 else self._default_limit,
                    record.num_blocks,
                    record.block_size,
                ),
                engine_id=record.engine_id,
                kind=kind,
                has_fence=kind is BATON,
                models=tuple(facts),
                facts=facts,
                compatibility_hash=record.compatibility_hash,
                weights_fingerprint=record.weights_fingerprint,
                internal_url=record.internal_url,
                tp=record.tp,
                version=record.version,
                name=record.name,
            )
            self._know(worker)
            self._routes.forget()
        if status.load is not worker.usage.load:  # an unchanged report is the same object as before
            worker.report(status.load, self._clock())
        return is_new

    def _know(self, worker: Worker) -> None:
        self._workers[worker.worker_id] = worker
        worker.standing.breaker = Breaker(self._breaker_failures)
        if worker.worker_id in self._left_out:
            del self._left_out[worker.worker_id]
            worker.standing.left_out = True

    def _remove(self, worker_id: str) -> None:
        worker = self._workers.pop(worker_id)
        self._routes.forget()
        self._tell_gone(worker.engine_ids or (worker.key,), worker)
        for left in self.on_left:
            left(worker)

    def _tell_gone(self, engine_ids: tuple[str, ...], worker: Worker) -> bool:
        """Say that the worker's engines are gone, unless they are reached under another worker's id as well."""
        if any(other.engine_id == engine_ids[0] for other in self._workers.values() if other is not worker):
            return False
        for listener in self.on_gone:
            for engine_id in engine_ids:
                listener(engine_id)
        return True

    def _changed(self) -> None:
        self._routes.forget()
        self._tell_who_came()
        self.room_changed()

    def _tell_who_came(self) -> None:
        for listener in self.on_came:
            listener()
