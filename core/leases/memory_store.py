"""Leases in this process, under the same contract tests as Redis: for tests, and for a worker without a router.

``LeaseTable`` is what the Lua scripts do, in Python. Router and P race each other by design, so every verb is legal in
every state:

           | grant      renew      release     due        finish
  unknown  | held       .          released    .          done
  held     | held       held       releasing   expired    done
  releasing| .          .          .           released   done
  done, released, expired: no verb changes them; forgotten 60 s later (unknown again)

A release of an unknown lease has overtaken its grant, or the store has lost the lease: the grant that comes then, or
again, does not hold it.

``due`` happens only inside ``reap``: an overdue lease is *held* until P asks about it, because only P may free the
blocks. A renewal that comes before that still counts. *releasing* is answered as released: P has not reaped it yet.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from baton_serve.core.leases.ids import check_duration, check_id
from baton_serve.core.leases.store import (
    DEAD_ENGINE_MARGIN_MS,
    OUTCOME_MEMORY_MS,
    LeaseState,
    LeaseStatus,
    LeaseStore,
    LeaseStoreError,
)
from baton_serve.core.process.clock import monotonic_ms


class LeaseTable:
    """All leases of one engine, and the outcomes of leases that ended in the last minute.

    Time is passed in as ``now_ms`` and must not go backwards. The verbs are ``LeaseStore``'s.
    """

    def __init__(self) -> None:
        #: By lease: its deadline.
        self._held: dict[str, int] = {}
        #: By lease that is not reaped yet: when it was released.
        self._releasing: dict[str, int] = {}
        #: By lease that has ended: how, and when that will be forgotten.
        self._outcomes: dict[str, tuple[LeaseState, int]] = {}
        #: The time at which all leases that have not ended are deleted.
        self._expires_at_ms = 0

    def grant(self, lease_ids: Sequence[str], duration_ms: int, now_ms: int) -> list[str]:
        """Returns the ids of the leases that are not held."""
        self._forget(now_ms)
        for lease_id in lease_ids:
            if lease_id not in self._releasing and lease_id not in self._outcomes:
                self._held[lease_id] = max(self._held.get(lease_id, 0), now_ms + duration_ms)
        self._set_expiry_after(lease_ids, now_ms)
        return [lease_id for lease_id in lease_ids if lease_id not in self._held]

    def renew(self, lease_ids: Sequence[str], duration_ms: int, now_ms: int) -> list[LeaseStatus]:
        self._forget(now_ms)
        for lease_id in lease_ids:
            if lease_id in self._held:
                self._held[lease_id] = max(self._held[lease_id], now_ms + duration_ms)
        self._set_expiry_after(lease_ids, now_ms)
        return [self._status(lease_id, now_ms) for lease_id in lease_ids]

    def release(self, lease_ids: Sequence[str], now_ms: int) -> bool:
        """Returns True if P is to be woken."""
        self._forget(now_ms)
        found = any(lease_id not in self._outcomes for lease_id in lease_ids)
        for lease_id in lease_ids:
            if self._held.pop(lease_id, None) is not None:
                self._releasing[lease_id] = now_ms
            elif lease_id not in self._releasing:
                self._end(lease_id, LeaseState.RELEASED, now_ms)
        self._set_expiry_after(lease_ids, now_ms)
        return found

    def reap(self, lease_ids: Sequence[str], done: Iterable[str], now_ms: int) -> list[LeaseStatus]:
        """Also deletes leases that are overdue by ``DEAD_ENGINE_MARGIN_MS`` and not in ``lease_ids``: P has forgotten
        them.
        """
        self._forget(now_ms)
        for lease_id in done:
            self._end(lease_id, LeaseState.DONE, now_ms)
        for lease_id in lease_ids:
            if lease_id in self._releasing:
                self._end(lease_id, LeaseState.RELEASED, now_ms)
            elif self._held.get(lease_id, now_ms + 1) <= now_ms:
                self._end(lease_id, LeaseState.EXPIRED, now_ms)
        for times in (self._held, self._releasing):
            for lease_id in [one for one, time_ms in times.items() if time_ms <= now_ms - DEAD_ENGINE_MARGIN_MS]:
                del times[lease_id]
        self._set_expiry(now_ms)
        return [self._status(lease_id, now_ms) for lease_id in lease_ids]

    def held(self, now_ms: int) -> list[LeaseStatus]:
        self._forget(now_ms)
        in_order = [
            lease_id
            for times in (self._releasing, self._held)
            for lease_id, _ in sorted(times.items(), key=lambda item: (item[1], item[0]))
        ]
        return [self._status(lease_id, now_ms) for lease_id in in_order]

    def _end(self, lease_id: str, outcome: LeaseState, now_ms: int) -> None:
        self._held.pop(lease_id, None)
        self._releasing.pop(lease_id, None)
        self._outcomes.setdefault(lease_id, (outcome, now_ms + OUTCOME_MEMORY_MS))

    def _status(self, lease_id: str, now_ms: int) -> LeaseStatus:
        if lease_id in self._held:
            return LeaseStatus(lease_id, LeaseState.HELD, max(0, self._held[lease_id] - now_ms))
        if lease_id in self._releasing:
            return LeaseStatus(lease_id, LeaseState.RELEASED)
        outcome, _ = self._outcomes.get(lease_id, (LeaseState.UNKNOWN, 0))
        return LeaseStatus(lease_id, outcome)

    def _forget(self, now_ms: int) -> None:
        """Delete what Redis would let expire: old outcomes, and all leases of an engine that sends no commands."""
        self._outcomes = {one: (how, until) for one, (how, until) in self._outcomes.items() if until > now_ms}
        if now_ms >= self._expires_at_ms:
            self._held.clear()
            self._releasing.clear()

    def _set_expiry_after(self, lease_ids: Sequence[str], now_ms: int) -> None:
        if lease_ids:  # without any, no script runs
            self._set_expiry(now_ms)

    def _set_expiry(self, now_ms: int) -> None:
        self._expires_at_ms = max([now_ms, *self._held.values()]) + DEAD_ENGINE_MARGIN_MS


class MemoryLeaseStore(LeaseStore):
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

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        check_duration(duration_ms)
        with self._changed:
            now_ms = self._clock()
            return {
                engine_id: self._table(engine_id, ids).renew(ids, duration_ms, now_ms)
                for engine_id, ids in leases.items()
            }

    def release_all(self, leases: Mapping[str, Sequence[str]]) -> dict[str, LeaseStoreError]:
        with self._changed:
            for engine_id, lease_ids in leases.items():
                if self._table(engine_id, lease_ids).release(lease_ids, self._clock()):
                    self._wakes[engine_id] += 1
                    self._changed.notify_all()
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
