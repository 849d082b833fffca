"""A router's own view of the leases it keeps alive, without I/O: when to renew what, and when one is lost.

All times are this machine's monotonic clock in ms, passed in. When a tracked lease is *over*: read by D, which is
how it should end, or *lost*, so that a request that still needs it is prefilled again at once:

- The store answers done: D has read the blocks, P has freed them. Not lost.
- The store answers released or expired: lost at once. P has freed the blocks, or is about to.
- The store answers unknown: it came back empty, and P grants again what it still holds. It notices within a quarter of
  a duration. So not before the deadline that the last renewal confirmed, nor before half a duration of unknowns.
- The store does not answer: P, which cannot reach it either, keeps everything for ``redis_grace_ms``. So not before
  that, counted from the first missing answer. A lease granted only after that lives for its own duration on P, so here.

Being wrong is safe in both directions: a lease believed too long makes D's read fail at the fence, one lost too early
costs a prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.leases.store import LeaseState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.leases.store import LeaseStatus

#: The longest time between two questions while the store is silent or does not know a lease.
RETRY_MS = 500


class AlreadyTrackedError(Exception):
    """The lease is tracked already; nothing was changed."""


@dataclass
class _Tracked:
    deadline_ms: int
    renew_at_ms: int
    unknown_since_ms: int | None = None


@dataclass
class _Engine:
    leases: dict[str, _Tracked] = field(default_factory=dict)
    #: Releases to send: lease id, and when to stop trying.
    releases: dict[str, int] = field(default_factory=dict)
    silent_since_ms: int | None = None
    retry_at_ms: int = 0


@dataclass(frozen=True)
class Over:
    """A lease that is kept no longer. UNKNOWN: the store lost it, or was silent for too long."""

    engine_id: str
    lease_id: str
    state: LeaseState

    @property
    def lost(self) -> bool:
        """Nobody has read the blocks."""
        return self.state is not LeaseState.DONE


@dataclass(frozen=True)
class EngineWork:
    """What to send for one engine now: releases first."""

    engine_id: str
    release: list[str]
    renew: list[str]


class RenewalBook:
    """The leases that one router keeps alive, by engine."""

    def __init__(self, *, duration_ms: int, renew_interval_ms: int, redis_grace_ms: int) -> None:
        self._duration_ms = duration_ms
        self._interval_ms = renew_interval_ms
        self._grace_ms = redis_grace_ms
        self._retry_ms = min(RETRY_MS, renew_interval_ms)
        #: Whatever is due this soon goes along with what is due now.
        self._slack_ms = renew_interval_ms // 4
        self._engines: dict[str, _Engine] = {}

    def __len__(self) -> int:
        """Tracked leases."""
        return sum(len(engine.leases) for engine in self._engines.values())

    def __contains__(self, engine_id: str) -> bool:
        """There is something left to do for that engine."""
        return engine_id in self._engines

    def track(self, engine_id: str, lease_id: str, now_ms: int) -> None:
        """Renew at once and from now on. P has just granted it. Raises AlreadyTrackedError."""
        engine = self._engines.setdefault(engine_id, _Engine())
        if lease_id in engine.leases:
            raise AlreadyTrackedError(f"lease {lease_id} is tracked already")
        engine.leases[lease_id] = _Tracked(deadline_ms=now_ms + self._duration_ms, renew_at_ms=now_ms)

    def untrack(self, engine_id: str, lease_id: str) -> bool:
        """Renew no longer; False if it was not tracked."""
        engine = self._engines.get(engine_id)
        known = engine is not None and engine.leases.pop(lease_id, None) is not None
        self._forget_idle(engine_id)
        return known

    def release(self, engine_id: str, lease_id: str, now_ms: int) -> None:
        """Renew no longer and release, trying for a whole duration: after it the lease has run out by itself."""
        engine = self._engines.setdefault(engine_id, _Engine())
        engine.leases.pop(lease_id, None)
        engine.releases[lease_id] = now_ms + self._duration_ms

    def remaining_ms(self, engine_id: str, lease_id: str, now_ms: int) -> int | None:
        """Until the deadline that the last renewal confirmed; None if the lease is not tracked."""
        engine = self._engines.get(engine_id)
        lease = None if engine is None else engine.leases.get(lease_id)
        return None if lease is None else max(0, lease.deadline_ms - now_ms)

    def next_work_ms(self) -> int | None:
        """When ``take_work`` next has something to do; None: only after the next call from outside."""
        return min((at_ms for at_ms in map(_next_ms, self._engines.values()) if at_ms is not None), default=None)

    def take_work(self, now_ms: int) -> list[EngineWork]:
        """What to send now. Every piece is followed by its answers or by ``failed``."""
        works = (self._engine_work(engine_id, engine, now_ms) for engine_id, engine in self._engines.items())
        return [work for work in works if work is not None]

    def take_releases(self) -> list[EngineWork]:
        """All releases not sent yet, for a last attempt."""
        return [EngineWork(key, list(engine.releases), []) for key, engine in self._engines.items() if engine.releases]

    def released(self, engine_id: str, lease_ids: Iterable[str]) -> None:
        """The store knows of these releases."""
        engine = self._heard(engine_id)
        if engine is not None:
            for lease_id in lease_ids:
                engine.releases.pop(lease_id, None)
            self._forget_idle(engine_id)

    def answered(self, engine_id: str, answers: Iterable[LeaseStatus], sent_ms: int, now_ms: int) -> list[Over]:
        """The store's answers to a renewal that was sent at ``sent_ms``: what is over by them."""
        engine = self._heard(engine_id)
        if engine is None:
            return []
        over = [status for status in answers if self._is_over(engine, status, sent_ms, now_ms)]
        return self._end(engine_id, engine, [(status.lease_id, status.state) for status in over])

    def failed(self, engine_id: str, now_ms: int) -> list[Over]:
        """The store did not answer for this engine: what is lost because the grace is over."""
        engine = self._engines.get(engine_id)
        if engine is None:
            return []
        if engine.silent_since_ms is None:
            engine.silent_since_ms = now_ms
        engine.retry_at_ms = now_ms + self._retry_ms
        for lease in engine.leases.values():
            lease.renew_at_ms = engine.retry_at_ms
        engine.releases = {key: until_ms for key, until_ms in engine.releases.items() if until_ms > now_ms}
        if now_ms < engine.silent_since_ms + self._grace_ms:
            return []
        overdue = [(key, LeaseState.UNKNOWN) for key, lease in engine.leases.items() if lease.deadline_ms <= now_ms]
        return self._end(engine_id, engine, overdue)

    def _engine_work(self, engine_id: str, engine: _Engine, now_ms: int) -> EngineWork | None:
        next_ms = _next_ms(engine)
        if next_ms is None or next_ms > now_ms:
            return None
        until_ms = now_ms + self._slack_ms
        renew = [lease_id for lease_id, lease in engine.leases.items() if lease.renew_at_ms <= until_ms]
        for lease_id in renew:
            engine.leases[lease_id].renew_at_ms = now_ms + self._interval_ms
        return EngineWork(engine_id, list(engine.releases), renew)

    def _heard(self, engine_id: str) -> _Engine | None:
        engine = self._engines.get(engine_id)
        if engine is not None:
            engine.silent_since_ms = None
        return engine

    def _is_over(self, engine: _Engine, status: LeaseStatus, sent_ms: int, now_ms: int) -> bool:
        lease = engine.leases.get(status.lease_id)
        if lease is None:
            return False  # untracked while the answer was on its way
        if status.state is LeaseState.HELD:
            # The store measured the rest after the renewal was sent, so from there it is not too long.
            lease.deadline_ms = sent_ms + status.remaining_ms
            lease.unknown_since_ms = None
            return False
        if status.state is not LeaseState.UNKNOWN:
            return True
        if lease.unknown_since_ms is None:
            lease.unknown_since_ms = now_ms
        lease.renew_at_ms = now_ms + self._retry_ms
        return now_ms >= max(lease.deadline_ms, lease.unknown_since_ms + self._duration_ms // 2)

    def _end(self, engine_id: str, engine: _Engine, over: list[tuple[str, LeaseState]]) -> list[Over]:
        for lease_id, _ in over:
            engine.leases.pop(lease_id, None)
        self._forget_idle(engine_id)
        return [Over(engine_id, lease_id, state) for lease_id, state in over]

    def _forget_idle(self, engine_id: str) -> None:
        engine = self._engines.get(engine_id)
        if engine is not None and not engine.leases and not engine.releases:
            del self._engines[engine_id]


def _next_ms(engine: _Engine) -> int | None:
    if not engine.leases and not engine.releases:
        return None
    if engine.silent_since_ms is not None:
        return engine.retry_at_ms
    return 0 if engine.releases else min(lease.renew_at_ms for lease in engine.leases.values())
