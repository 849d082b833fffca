"""P's own view of the leases it granted, without I/O: what to ask the store, and what its answers mean.

All times are this machine's monotonic clock in ms, passed in. The states are in ``core.leases.holder_state``.

What the store's silence means. A lease is a promise of retention, so unsure means keep: while the store cannot be
reached nothing ends before ``redis_grace_ms`` after its first missing answer. Then whatever is past its own deadline
ends. The routers could not renew meanwhile either, so once the store is back, leases that ran low are granted again
before anything is reaped.
What the store's ignorance means. A lease that it does not know any more (it came back empty) is granted again, with a
whole duration. But only a few times without a renewal in between: else a store that keeps losing everything would hold
the blocks of a dead router's requests for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.leases.holder_state import NEXT, PINNING, DuplicateLeaseError, HolderEvent, HolderState, NotHeldError
from core.leases.store import LeaseState, LeaseStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How often a lease is granted again although nobody has renewed it since.
MAX_UNRENEWED_GRANTS = 4
#: A deadline must move by this much to count as renewed; less is the clocks' rounding and the answer's way.
RENEWED_MS = 50
#: The time between two attempts while the store cannot be reached.
RETRY_MS = 500


@dataclass
class _Lease:
    state: HolderState
    deadline_ms: int
    #: Grants since the last sign of a renewal.
    unrenewed_grants: int = 0
    #: Telling and withdrawn: when to stop trying to tell.
    forget_ms: int = 0


@dataclass(frozen=True)
class Ended:
    """A lease that ended without our doing: its blocks are to be unpinned."""

    lease_id: str
    state: LeaseState


@dataclass(frozen=True)
class Work:
    """What to ask the store now, in this order."""

    grant: list[str] = field(default_factory=list)
    #: Withdrawn leases: released, and reaped at once.
    release: list[str] = field(default_factory=list)
    #: Leases to tell the store "done" of, in the same call as the reap.
    done: list[str] = field(default_factory=list)
    reap: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.grant or self.release or self.done or self.reap)


class LeaseHolder:
    """The leases of one engine, in the order in which they were granted."""

    def __init__(self, *, duration_ms: int, redis_grace_ms: int, now_ms: int) -> None:
        self._duration_ms = duration_ms
        self._grace_ms = redis_grace_ms
        #: P asks about all its leases this often, so that a store that came back empty is noticed before one falls due.
        self._sync_ms = max(1, duration_ms // 4)
        self._leases: dict[str, _Lease] = {}
        #: Those that are not HELD: the store has to hear of them.
        self._untold: dict[str, _Lease] = {}
        #: When to ask about all: a sync, or not later than the earliest deadline.
        self._sync_at_ms = now_ms + self._sync_ms
        self._silent_since_ms: int | None = None
        self._retry_at_ms = now_ms

    def __repr__(self) -> str:
        counts = [(state, sum(lease.state is state for lease in self._leases.values())) for state in HolderState]
        reach = "reachable" if self.reachable else "unreachable"
        return f"<LeaseHolder {' '.join([reach, *(f'{state}={count}' for state, count in counts if count)])}>"

    def __len__(self) -> int:
        """Leases whose blocks are pinned."""
        return len(self.pinned())

    def pinned(self) -> list[str]:
        """Leases whose blocks are pinned, oldest first."""
        return [lease_id for lease_id, lease in self._leases.items() if lease.state in PINNING]

    @property
    def reachable(self) -> bool:
        """Whether the store answered last time."""
        return self._silent_since_ms is None

    def grant(self, lease_id: str, now_ms: int) -> None:
        """Hold from now on. Raises DuplicateLeaseError."""
        if lease_id in self._leases:
            raise DuplicateLeaseError(f"lease {lease_id} was granted before")
        lease = _Lease(HolderState.GRANTING, now_ms + self._duration_ms)
        self._leases[lease_id] = self._untold[lease_id] = lease

    def done(self, lease_id: str, now_ms: int) -> None:
        """D has read the blocks. Raises NotHeldError."""
        self._withdraw(lease_id, HolderEvent.DONE, now_ms)

    def drop(self, lease_id: str, now_ms: int) -> None:
        """Nobody will read the blocks. Raises NotHeldError."""
        self._withdraw(lease_id, HolderEvent.DROP, now_ms)

    def give_up_oldest(self, now_ms: int) -> str | None:
        """End the oldest lease that is kept only because the store is silent; None if there is none.

        A lease before its deadline is never given up: it was promised.
        """
        if self.reachable:
            return None
        for lease_id, lease in self._leases.items():
            if lease.state in PINNING and lease.deadline_ms <= now_ms:
                self._withdraw(lease_id, HolderEvent.GIVE_UP, now_ms)
                return lease_id
        return None

    def sync_soon(self) -> None:
        """Ask about every lease as soon as possible: one of them was released."""
        self._sync_at_ms = 0

    def next_work_ms(self) -> int | None:
        """When ``take_work`` next has something to do; None: only after the next call from outside."""
        if not self._leases:
            return None
        if not self.reachable:
            return self._retry_at_ms
        return 0 if self._untold else self._sync_at_ms

    def take_work(self, now_ms: int) -> Work:
        """What to ask the store now, empty when there is nothing. Followed by the answers or by ``failed``."""
        next_ms = self.next_work_ms()
        if next_ms is None or next_ms > now_ms:
            return Work()
        release = self._with_state(HolderState.WITHDRAWN)
        reap = list(release)
        if self._sync_at_ms <= now_ms:
            self._sync_at_ms = now_ms + self._sync_ms
            reap += [lease_id for lease_id, lease in self._leases.items() if lease.state is HolderState.HELD]
        return Work(
            grant=self._with_state(HolderState.GRANTING),
            release=release,
            done=self._with_state(HolderState.TELLING),
            reap=reap,
        )

    def granted(self, lease_ids: Iterable[str], now_ms: int) -> None:
        """The store holds these now."""
        self._silent_since_ms = None
        for lease_id in lease_ids:
            lease = self._leases.get(lease_id)
            if lease is not None and lease.state is HolderState.GRANTING:
                lease.deadline_ms = now_ms + self._duration_ms
                lease.unrenewed_grants += 1
                self._step(lease_id, HolderEvent.CONFIRMED)

    def answered(self, work: Work, answers: Iterable[LeaseStatus], now_ms: int) -> list[Ended]:
        """The store's answers to the reap of ``work``: what ended by them."""
        self._silent_since_ms = None
        ended = [self._answer(status, now_ms) for status in answers]
        for lease_id in (*work.release, *work.done):
            self._step(lease_id, HolderEvent.SETTLED)
        return [one for one in ended if one is not None]

    def failed(self, now_ms: int) -> list[Ended]:
        """The store did not answer: what ends because its grace is over."""
        if self._silent_since_ms is None:
            self._silent_since_ms = now_ms
        self._retry_at_ms = now_ms + RETRY_MS
        self._sync_at_ms = 0
        for lease_id, lease in list(self._leases.items()):
            self._doubt(lease_id, lease, now_ms)
        if now_ms < self._silent_since_ms + self._grace_ms:
            return []
        over = [key for key, lease in self._leases.items() if lease.state in PINNING and lease.deadline_ms <= now_ms]
        for lease_id in over:
            self._withdraw(lease_id, HolderEvent.GIVE_UP, now_ms)
        return [Ended(lease_id, LeaseState.EXPIRED) for lease_id in over]

    def _with_state(self, state: HolderState) -> list[str]:
        return [lease_id for lease_id, lease in self._untold.items() if lease.state is state]

    def _withdraw(self, lease_id: str, event: HolderEvent, now_ms: int) -> None:
        self._step(lease_id, event)
        # The set in Redis outlives the longest deadline by a minute only: later there is nobody left to tell.
        self._leases[lease_id].forget_ms = now_ms + self._duration_ms + self._grace_ms

    def _step(self, lease_id: str, event: HolderEvent) -> None:
        lease = self._leases.get(lease_id)
        if lease is None or (lease.state, event) not in NEXT:
            raise NotHeldError(f"lease {lease_id} is not held ({event})")
        state = NEXT[lease.state, event]
        self._untold.pop(lease_id, None)
        if state is None:
            del self._leases[lease_id]
            return
        lease.state = state
        if state is not HolderState.HELD:
            self._untold[lease_id] = lease

    def _answer(self, status: LeaseStatus, now_ms: int) -> Ended | None:
        lease = self._leases.get(status.lease_id)
        if lease is None or lease.state is not HolderState.HELD:
            return None  # it ended here while the answer was on its way
        if status.state is LeaseState.HELD:
            self._keep(status.lease_id, lease, now_ms + status.remaining_ms)
            return None
        if status.state is LeaseState.UNKNOWN and lease.unrenewed_grants < MAX_UNRENEWED_GRANTS:
            self._step(status.lease_id, HolderEvent.UNSURE)
            return None
        self._step(status.lease_id, HolderEvent.ENDED)
        return Ended(status.lease_id, LeaseState.EXPIRED if status.state is LeaseState.UNKNOWN else status.state)

    def _keep(self, lease_id: str, lease: _Lease, deadline_ms: int) -> None:
        if deadline_ms > lease.deadline_ms + RENEWED_MS:
            lease.unrenewed_grants = 0
        lease.deadline_ms = deadline_ms
        self._sync_at_ms = min(self._sync_at_ms, deadline_ms)
        self._step(lease_id, HolderEvent.KEPT)

    def _doubt(self, lease_id: str, lease: _Lease, now_ms: int) -> None:
        low = lease.deadline_ms <= now_ms + self._duration_ms // 2
        if lease.state is HolderState.HELD and low and lease.unrenewed_grants < MAX_UNRENEWED_GRANTS:
            self._step(lease_id, HolderEvent.UNSURE)
        elif lease.state not in PINNING and lease.forget_ms <= now_ms:
            del self._leases[lease_id], self._untold[lease_id]
