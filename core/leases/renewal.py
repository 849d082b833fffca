"""A router's own view of the leases it keeps alive, without I/O: when to renew a lease, and when it is lost.

All times are this machine's monotonic clock in ms, passed in. A tracked lease is *over* when D has read the blocks,
or when it is *lost*: then a request that still needs it is prefilled again at once.

A lease is renewed for the first time a quarter of an interval after P's answer. By then D has read the blocks of most
leases, and the router renews all others together. A lease whose P has answered just now is left for the next time,
because P has not yet told the store of it.

- The store answers done: D has read the blocks and P has freed them. The lease is over but not lost.
- The store answers released or expired: the lease is lost at once, because P has freed the blocks or is about to.
- The store answers unknown: it came back empty. P notices within a quarter of a duration and grants its leases again.
  So the lease is lost only after the deadline that the last renewal confirmed, and after half a duration of unknowns.
- The store does not answer: P cannot reach it either, and keeps all blocks for ``redis_grace_ms``. So the lease is lost
  only after that time, counted from the first missing answer, and after its own deadline.

The router can be wrong in two ways, and both are safe. If it believes a lost lease alive, D's read fails at the fence.
If it gives up a lease too early, the request is prefilled once more than necessary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from baton_serve.core.leases.store import LeaseState, LeaseStatus

#: The longest time in ms between two calls while the store does not answer or does not know a lease.
RETRY_MS = 500


class AlreadyTrackedError(Exception):
    """The lease is tracked already; nothing was changed."""


@dataclass(slots=True)
class _TrackedLease:
    deadline_ms: int
    renew_at_ms: int
    #: Until then the store may not know the lease, because P tells of grants a little later.
    new_until_ms: int
    unknown_since_ms: int | None = None


@dataclass(slots=True)
class _Engine:
    leases: dict[str, _TrackedLease] = field(default_factory=dict)
    #: No lease is due before this. The one that was due first may have been untracked since.
    due_ms: int = 0
    #: Releases to send, by lease id; the value is the time to stop trying.
    releases: dict[str, int] = field(default_factory=dict)
    silent_since_ms: int | None = None
    retry_at_ms: int = 0


@dataclass(frozen=True)
class LeaseOver:
    """A lease that is no longer renewed. ``UNKNOWN``: the store lost it, or did not answer for too long."""

    engine_id: str
    lease_id: str
    state: LeaseState

    @property
    def lost(self) -> bool:
        """Whether no D has read the blocks."""
        return self.state is not LeaseState.DONE


@dataclass(frozen=True)
class EngineWork:
    """The lease ids to send for one engine now: first the releases, then the renewals."""

    engine_id: str
    release: list[str]
    renew: list[str]


class TrackedLeases:
    """The leases that one router keeps alive, by engine."""

    def __init__(self, *, duration_ms: int, renew_interval_ms: int, redis_grace_ms: int) -> None:
        self._duration_ms = duration_ms
        self._interval_ms = renew_interval_ms
        self._grace_ms = redis_grace_ms
        self._retry_ms = min(RETRY_MS, renew_interval_ms)
        self._first_ms = renew_interval_ms // 4
        self._new_ms = renew_interval_ms // 16
        #: Leases that are due within this time are renewed together with those that are due now, so that an engine is
        #: asked twice in an interval at most, and usually once.
        self._slack_ms = renew_interval_ms // 2
        #: Engines that are due within this time are asked together with one that is due now, and so renewed early: the
        #: store is asked eight times in an interval at most, however many engines there are.
        self._together_ms = renew_interval_ms // 8
        self._engines: dict[str, _Engine] = {}

    def __len__(self) -> int:
        """How many leases are tracked."""
        return sum(len(engine.leases) for engine in self._engines.values())

    def __contains__(self, engine_id: str) -> bool:
        """Whether a lease of that engine is tracked, or a release is to be sent to it."""
        return engine_id in self._engines

    def track(self, engine_id: str, lease_id: str, now_ms: int) -> int:
        """Renew the lease, which P has just granted, soon and from then on; returns when at the earliest.

        Raises AlreadyTrackedError.
        """
        engine = self._engines.get(engine_id) or self._engines.setdefault(engine_id, _Engine())
        if lease_id in engine.leases:
            raise AlreadyTrackedError(f"lease {lease_id} is tracked already")
        due_ms = now_ms + self._first_ms
        engine.due_ms = min(engine.due_ms, due_ms) if engine.leases else due_ms
        engine.leases[lease_id] = _TrackedLease(now_ms + self._duration_ms, due_ms, now_ms + self._new_ms)
        return due_ms

    def untrack(self, engine_id: str, lease_id: str) -> bool:
        """Stop renewing the lease; returns False if it was not tracked."""
        engine = self._engines.get(engine_id)
        known = engine is not None and engine.leases.pop(lease_id, None) is not None
        self._forget_idle(engine_id)
        return known

    def release(self, engine_id: str, lease_id: str, now_ms: int) -> None:
        """Stop renewing the lease and release it, trying for a whole duration: after that the lease has run out by
        itself.
        """
        engine = self._engines.setdefault(engine_id, _Engine())
        engine.leases.pop(lease_id, None)
        engine.releases[lease_id] = now_ms + self._duration_ms

    def remaining_ms(self, engine_id: str, lease_id: str, now_ms: int) -> int | None:
        """Milliseconds until the deadline that the last renewal confirmed; None if the lease is not tracked."""
        engine = self._engines.get(engine_id)
        lease = None if engine is None else engine.leases.get(lease_id)
        return None if lease is None else max(0, lease.deadline_ms - now_ms)

    def next_work_ms(self) -> int | None:
        """The time when ``take_work`` next has work; None: not before another method is called."""
        return min((at_ms for at_ms in map(_next_ms, self._engines.values()) if at_ms is not None), default=None)

    def take_work(self, now_ms: int) -> list[EngineWork]:
        """Returns what to send now. The caller then calls ``released`` and ``answered``, or ``failed``, for each
        engine.
        """
        next_ms = self.next_work_ms()
        if next_ms is None or next_ms > now_ms:
            return []
        works = (self._engine_work(engine_id, engine, now_ms) for engine_id, engine in self._engines.items())
        return [work for work in works if work is not None]

    def take_releases(self) -> list[EngineWork]:
        """All releases that are not confirmed."""
        return [EngineWork(key, list(engine.releases), []) for key, engine in self._engines.items() if engine.releases]

    def released(self, engine_id: str, lease_ids: Iterable[str]) -> None:
        """Note that the store has confirmed these releases."""
        engine = self._answering(engine_id)
        if engine is not None:
            self._forget_releases(engine_id, engine, lease_ids)

    def released_elsewhere(self, engine_id: str, lease_ids: Iterable[str]) -> int:
        """Note that these releases need not be sent any more; returns how many were. The store may still be silent."""
        engine = self._engines.get(engine_id)
        return 0 if engine is None else self._forget_releases(engine_id, engine, lease_ids)

    def answered(self, engine_id: str, answers: Iterable[LeaseStatus], sent_ms: int, now_ms: int) -> list[LeaseOver]:
        """Take the answers to a renewal that was sent at ``sent_ms``; returns the leases that are over."""
        engine = self._answering(engine_id)
        if engine is None:
            return []
        over = [status for status in answers if self._is_over(engine, status, sent_ms, now_ms)]
        return self._end(engine_id, engine, [(status.lease_id, status.state) for status in over])

    def failed(self, engine_id: str, now_ms: int) -> list[LeaseOver]:
        """Note that the store did not answer for this engine; returns the leases that are lost because the grace is
        over.
        """
        engine = self._engines.get(engine_id)
        if engine is None:
            return []
        if engine.silent_since_ms is None:
            engine.silent_since_ms = now_ms
        engine.retry_at_ms = now_ms + self._retry_ms
        for lease in engine.leases.values():
            lease.renew_at_ms = engine.retry_at_ms
        engine.due_ms = engine.retry_at_ms
        engine.releases = {key: until_ms for key, until_ms in engine.releases.items() if until_ms > now_ms}
        if now_ms < engine.silent_since_ms + self._grace_ms:
            return self._end(engine_id, engine, [])
        overdue = [(key, LeaseState.UNKNOWN) for key, lease in engine.leases.items() if lease.deadline_ms <= now_ms]
        return self._end(engine_id, engine, overdue)

    def _engine_work(self, engine_id: str, engine: _Engine, now_ms: int) -> EngineWork | None:
        next_ms, is_silent = _next_ms(engine), engine.silent_since_ms is not None
        together_ms = 0 if is_silent else self._together_ms
        if next_ms is None or next_ms > now_ms + together_ms:
            return None
        until_ms, again_ms = now_ms + self._slack_ms, now_ms + self._interval_ms
        renew, engine.due_ms = [], again_ms
        for lease_id, lease in engine.leases.items():
            if lease.renew_at_ms <= until_ms and (lease.new_until_ms <= now_ms or is_silent):
                lease.renew_at_ms = again_ms
                renew.append(lease_id)
                continue
            if lease.renew_at_ms < until_ms:  # a new one, which would have the engine asked again too soon
                lease.renew_at_ms = until_ms
            if lease.renew_at_ms < engine.due_ms:
                engine.due_ms = lease.renew_at_ms
        if not renew and not engine.releases:
            engine.retry_at_ms = now_ms + self._retry_ms
            return None
        return EngineWork(engine_id, list(engine.releases), renew)

    def _answering(self, engine_id: str) -> _Engine | None:
        engine = self._engines.get(engine_id)
        if engine is not None:
            engine.silent_since_ms = None
        return engine

    def _is_over(self, engine: _Engine, status: LeaseStatus, sent_ms: int, now_ms: int) -> bool:
        lease = engine.leases.get(status.lease_id)
        if lease is None:
            return False  # untracked before the answer came
        if status.state is LeaseState.HELD:
            # The store computed remaining_ms after the renewal was sent, so the real deadline is not earlier than this.
            lease.deadline_ms = sent_ms + status.remaining_ms
            lease.unknown_since_ms = None
            return False
        if status.state is not LeaseState.UNKNOWN:
            return True
        if lease.unknown_since_ms is None:
            lease.unknown_since_ms = now_ms
        lease.renew_at_ms = now_ms + self._retry_ms
        engine.due_ms = min(engine.due_ms, lease.renew_at_ms)
        return now_ms >= max(lease.deadline_ms, lease.unknown_since_ms + self._duration_ms // 2)

    def _end(self, engine_id: str, engine: _Engine, over: list[tuple[str, LeaseState]]) -> list[LeaseOver]:
        for lease_id, _ in over:
            engine.leases.pop(lease_id, None)
        self._forget_idle(engine_id)
        return [LeaseOver(engine_id, lease_id, state) for lease_id, state in over]

    def _forget_releases(self, engine_id: str, engine: _Engine, lease_ids: Iterable[str]) -> int:
        num_forgotten = sum(engine.releases.pop(lease_id, None) is not None for lease_id in lease_ids)
        self._forget_idle(engine_id)
        return num_forgotten

    def _forget_idle(self, engine_id: str) -> None:
        engine = self._engines.get(engine_id)
        if engine is not None and not engine.leases and not engine.releases:
            del self._engines[engine_id]


def _next_ms(engine: _Engine) -> int | None:
    if not engine.leases and not engine.releases:
        return None
    if engine.silent_since_ms is not None:
        return engine.retry_at_ms
    return 0 if engine.releases else engine.due_ms
