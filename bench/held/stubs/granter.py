"""The leases of all stub prefill engines, in one thread: granted, kept and reaped as a worker does it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from baton_serve.core.leases.holder import LeaseHolder
from baton_serve.core.process.clock import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton_serve.core.leases.store import LeaseStore

#: As long as workers keep blocks while Redis does not answer.
REDIS_GRACE_MS = 60_000
#: Seconds between two looks at what is due.
TICK_S = 0.005


class Granter:
    """``grant`` and ``done`` may be called from any thread. ``ended`` counts by how leases ended in the store."""

    def __init__(self, store: LeaseStore, engine_ids: Iterable[str], duration_ms: int) -> None:
        now_ms = monotonic_ms()
        self._store = store
        self._duration_ms = duration_ms
        self._holders = {
            engine_id: LeaseHolder(duration_ms=duration_ms, redis_grace_ms=REDIS_GRACE_MS, now_ms=now_ms)
            for engine_id in engine_ids
        }
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self.ended: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="granter", daemon=True)
        self._thread.start()

    def grant(self, engine_id: str, lease_id: str) -> None:
        """Grant a lease; Redis has it soon."""
        with self._lock:
            self._holders[engine_id].grant(lease_id, monotonic_ms())

    def done(self, engine_id: str, lease_id: str) -> None:
        """A decode engine has read. Raises NotHeldError if the lease has ended already."""
        with self._lock:
            self._holders[engine_id].done(lease_id, monotonic_ms())

    def num_leases(self) -> dict[str, int]:
        """How many leases each engine has."""
        with self._lock:
            return {engine_id: len(holder) for engine_id, holder in self._holders.items()}

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed.wait(TICK_S):
            for engine_id, holder in self._holders.items():
                self._look(engine_id, holder)

    def _look(self, engine_id: str, holder: LeaseHolder) -> None:
        with self._lock:
            work = holder.take_work(monotonic_ms())
        if work.grant:
            refused = self._store.grant(engine_id, work.grant, self._duration_ms)
            with self._lock:
                holder.granted(work.grant, monotonic_ms())
                if refused:
                    holder.sync_soon()
        if work.release:
            self._store.release(engine_id, work.release)
        if work.reap or work.done:
            answers = self._store.reap(engine_id, work.reap, work.done)
            with self._lock:
                self.ended.update(str(one.state) for one in holder.answered(work, answers, monotonic_ms()))
