"""Leases in a simulated cluster, by the project's own store and state machines.

They are the in-memory store with the simulated clock, a ``LeaseHolder`` for each P and a ``TrackedLeases`` for each
router. What drives them is modelled: P and a released lease wait for no thread and no network, and routers renew when
``TICK_S`` have passed, not at the very moment when a renewal falls due.
"""

from __future__ import annotations

from collections.abc import Callable

from baton_serve.core.leases.holder import LeaseHolder
from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.leases.renewal import TrackedLeases
from bench.scale.clock import SimulatedLoop
from bench.scale.cluster.kept import KeptBlocks

#: Seconds between two looks of a router at what is to be renewed.
TICK_S = 0.25
REDIS_GRACE_MS = 60_000
#: From a router's death until another router has ended its leases: one call to each worker.
CLEAN_UP_S = 0.01


class Leases:
    """Leases of ``duration_ms`` in the in-memory store, renewed every quarter of that.

    ``cleans_up``: when a router dies, another one ends its leases.
    """

    def __init__(self, loop: SimulatedLoop, duration_ms: int, *, cleans_up: bool = True) -> None:
        self._cleans_up = cleans_up
        self._loop = loop
        self._duration_ms = duration_ms
        self._store = MemoryLeaseStore(loop.now_ms)
        self._holders: dict[str, LeaseHolder] = {}
        #: Engines whose timer runs.
        self._to_tell: set[str] = set()
        self._books: dict[str, TrackedLeases] = {}
        self._on_lost: dict[str, Callable[[str], None]] = {}
        self._of_router: dict[str, dict[str, KeptBlocks]] = {}
        self._paused_until_s: dict[str, float] = {}
        self._dead: set[str] = set()
        #: Leases that were granted, calls that renewed some, and leases that were lost.
        self.num_granted = self.num_renewals = self.num_lost = 0

    def grant(self, engine: KeptBlocks, lease_id: str) -> None:
        """P has kept the blocks; its answer is on its way."""
        self._holder(engine).grant(lease_id, self._loop.now_ms())
        self._tell_later(engine)

    def track(self, router: str, engine: KeptBlocks, lease_id: str, on_lost: Callable[[str], None]) -> None:
        """A router has P's answer, and renews from now on."""
        book = self._books.get(router)
        if book is None:
            book = self._books[router] = TrackedLeases(
                duration_ms=self._duration_ms,
                renew_interval_ms=max(1, self._duration_ms // 4),
                redis_grace_ms=REDIS_GRACE_MS,
            )
            self._tick(router)
        book.track(engine.engine_id, lease_id, self._loop.now_ms())
        self._on_lost[lease_id] = on_lost
        self._of_router.setdefault(router, {})[lease_id] = engine

    def read(self, router: str, engine: KeptBlocks, lease_id: str) -> None:
        """D has read the blocks and told P."""
        self._untrack(router, engine, lease_id)
        if lease_id in engine.leased:
            self._holder(engine).done(lease_id, self._loop.now_ms())
            engine.free(lease_id)
            self._tell_later(engine)

    def release(self, router: str, engine: KeptBlocks, lease_id: str) -> None:
        """A router will not have the blocks read."""
        self._untrack(router, engine, lease_id)
        if lease_id in engine.leased and engine.engine_id in self._holders:
            self._store.release(engine.engine_id, [lease_id])
            self._holder(engine).sync_soon()
            self._work(engine)

    def router_died(self, router: str) -> None:
        """Nobody renews the leases of this router any more."""
        self._dead.add(router)
        for lease_id, engine in self._of_router.pop(router, {}).items():
            self._on_lost.pop(lease_id, None)
            if self._cleans_up:
                self._loop.call_later(CLEAN_UP_S, self.release, router, engine, lease_id)

    def is_wanted(self, lease_id: str) -> bool:
        """Whether a request still waits for the blocks of this lease, or reads them."""
        return lease_id in self._on_lost

    def pause(self, router: str, seconds: float) -> None:
        """The router's renewing thread stands still for that time."""
        self._paused_until_s[router] = max(self._paused_until_s.get(router, 0.0), self._loop.now_s + seconds)

    def engine_died(self, engine: KeptBlocks) -> None:
        """The blocks are gone."""
        self._holders.pop(engine.engine_id, None)

    def _untrack(self, router: str, engine: KeptBlocks, lease_id: str) -> None:
        self._on_lost.pop(lease_id, None)
        self._of_router.get(router, {}).pop(lease_id, None)
        if router in self._books:
            self._books[router].untrack(engine.engine_id, lease_id)

    def _holder(self, engine: KeptBlocks) -> LeaseHolder:
        holder = self._holders.get(engine.engine_id)
        if holder is None:
            now_ms = self._loop.now_ms()
            holder = self._holders[engine.engine_id] = LeaseHolder(
                duration_ms=self._duration_ms, redis_grace_ms=REDIS_GRACE_MS, now_ms=now_ms
            )
            self._sync(engine)
        return holder

    def _sync(self, engine: KeptBlocks) -> None:
        """P's thread: it looks after its leases a few times in the life of a lease."""
        if engine.engine_id in self._holders and not self._loop.is_over:
            self._work(engine)
            self._loop.call_later(self._duration_ms / 8000, self._sync, engine)

    def _tell_later(self, engine: KeptBlocks) -> None:
        """P's timer: the store is told of many grants and reads at once."""
        if engine.engine_id not in self._to_tell:
            self._to_tell.add(engine.engine_id)
            self._loop.call_later(self._holders[engine.engine_id].tell_delay_ms / 1000, self._tell, engine)

    def _tell(self, engine: KeptBlocks) -> None:
        self._to_tell.discard(engine.engine_id)
        if engine.engine_id in self._holders:
            self._holders[engine.engine_id].tell_now()
            self._work(engine)

    def _work(self, engine: KeptBlocks) -> None:
        now_ms = self._loop.now_ms()
        holder = self._holders[engine.engine_id]
        work = holder.take_work(now_ms)
        if not work:
            return
        if work.grant:
            self.num_granted += len(work.grant)
            refused = self._store.grant(engine.engine_id, work.grant, self._duration_ms)
            holder.granted(work.grant, now_ms)
            if refused:
                holder.sync_soon()
        if work.release:
            self._store.release(engine.engine_id, work.release)
        if work.done or work.reap:
            for ended in holder.answered(work, self._store.reap(engine.engine_id, work.reap, work.done), now_ms):
                engine.free(ended.lease_id)

    def _tick(self, router: str) -> None:
        """The router's thread."""
        if router in self._dead or self._loop.is_over:
            return
        now_ms = self._loop.now_ms()
        if self._paused_until_s.get(router, 0.0) <= self._loop.now_s:
            book = self._books[router]
            for work in book.take_work(now_ms):
                self.num_renewals += 1
                answers = self._store.renew(work.engine_id, work.renew, self._duration_ms)
                for over in book.answered(work.engine_id, answers, now_ms, now_ms):
                    self._end(over.lease_id, over.lost)
        self._loop.call_later(TICK_S, self._tick, router)

    def _end(self, lease_id: str, lost: bool) -> None:
        on_lost = self._on_lost.pop(lease_id, None)
        if on_lost is not None and lost:
            self.num_lost += 1
            on_lost(lease_id)
