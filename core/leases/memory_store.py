"""Leases in this process, under the same contract tests as Redis: for tests, and for a worker without a router."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from baton_serve.core.leases.ids import check_duration, check_id
from baton_serve.core.leases.model import LeaseTable
from baton_serve.core.process.clock import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton_serve.core.leases.store import LeaseStatus, LeaseStoreError


class MemoryLeaseStore:
    """A ``LeaseStore`` over ``LeaseTable``. ``clock`` returns ms; tests inject one so that they need not wait."""

    def __init__(self, clock: Callable[[], int] = monotonic_ms) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._tables: defaultdict[str, LeaseTable] = defaultdict(LeaseTable)
        self._wakes: defaultdict[str, int] = defaultdict(int)

    def grant(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[str]:
        check_duration(duration_ms)
        with self._changed:
            return self._table(engine_id, lease_ids).grant(lease_ids, duration_ms, self._clock())

    def renew(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[LeaseStatus]:
        check_duration(duration_ms)
        with self._changed:
            return self._table(engine_id, lease_ids).renew(lease_ids, duration_ms, self._clock())

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        return {engine_id: self.renew(engine_id, lease_ids, duration_ms) for engine_id, lease_ids in leases.items()}

    def release(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        with self._changed:
            if self._table(engine_id, lease_ids).release(lease_ids, self._clock()):
                self._wakes[engine_id] += 1
                self._changed.notify_all()

    def release_all(self, leases: Mapping[str, Sequence[str]]) -> dict[str, LeaseStoreError]:
        for engine_id, lease_ids in leases.items():
            self.release(engine_id, lease_ids)
        return {}

    def reap(self, engine_id: str, lease_ids: Sequence[str], done: Sequence[str]) -> list[LeaseStatus]:
        with self._changed:
            return self._table(engine_id, [*lease_ids, *done]).reap(lease_ids, done, self._clock())

    def held(self, engine_id: str) -> list[LeaseStatus]:
        with self._changed:
            return self._table(engine_id, ()).held(self._clock())

    def wakeups(self, engine_id: str) -> MemoryWakeups:
        return MemoryWakeups(self._changed, self._wakes, check_id(engine_id))

    def close(self) -> None:
        """Nothing to close."""

    def _table(self, engine_id: str, lease_ids: Sequence[str]) -> LeaseTable:
        for lease_id in lease_ids:
            check_id(lease_id)
        return self._tables[check_id(engine_id)]


class MemoryWakeups:
    """``Wakeups`` of one engine: remembers how many releases ``wait`` has reported."""

    def __init__(self, changed: threading.Condition, wakes: defaultdict[str, int], engine_id: str) -> None:
        self._changed = changed
        self._wakes = wakes
        self._engine_id = engine_id
        self._closed = False
        with changed:
            self._seen = wakes[engine_id]

    def wait(self, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(self._news, timeout_s)
            woken = self._wakes[self._engine_id] != self._seen and not self._closed
            self._seen = self._wakes[self._engine_id]
            return woken

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _news(self) -> bool:
        return self._closed or self._wakes[self._engine_id] != self._seen
