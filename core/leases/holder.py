"""P's own view of the leases it granted, without I/O: what to ask the store, and what its answers mean.

All times are this machine's monotonic clock in ms, passed in. The states are in ``core.leases.holder_state``.

When the store does not answer: a lease is a promise of retention, so P keeps the blocks when in doubt. No lease ends
before ``redis_grace_ms`` after the first missing answer; then those that are past their own deadline end. The routers
could not renew meanwhile either, so leases that ran low are granted again before anything is reaped.
When the store does not know a lease any more (it came back empty): P grants it again with a whole duration, but only
``MAX_UNRENEWED_GRANTS`` times without a renewal in between. Otherwise a store that keeps losing everything would hold
the blocks of a dead router's requests forever.
P sends grants and reads to the store a little later, in batches, because no caller waits for them. Most blocks are read
before a router asks the store about their lease; of a lease that is read before its batch leaves, the store hears only
the end. A router that asks before the grant hears that the lease is unknown, and asks again; a release before the grant
refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from baton_serve.core.leases.holder_state import (
    NEXT,
    PINNING,
    DuplicateLeaseError,
    HolderEvent,
    HolderState,
    NotHeldError,
)
from baton_serve.core.leases.store import LeaseState, LeaseStatus

#: How many times a lease is granted without a renewal in between.
MAX_UNRENEWED_GRANTS = 4
#: Milliseconds that a deadline must move to count as renewed: rounding and network delay move it a little too.
RENEWED_MS = 50
#: Milliseconds between two attempts while the store cannot be reached.
RETRY_MS = 500
#: Most milliseconds until a store that answers is told of a grant or a read. A router asks about a lease a sixteenth of
#: its interval after P's answer at the earliest: 93 ms, unless it is set otherwise.
TELL_DELAY_MS = 50
#: The delay is at most the duration of a lease divided by this. A router that renews a lease four times in its duration
#: asks about it after this time at the earliest, so P has told the store by then.
DURATION_PER_DELAY = 64


@dataclass
class _GrantedLease:
    state: HolderState
    deadline_ms: int
    #: Grants since the last renewal.
    unrenewed_grants: int = 0
    #: In ``TELLING`` and ``WITHDRAWN``: the time to stop trying to notify the store.
    forget_ms: int = 0


@dataclass(frozen=True)
class Ended:
    """A lease that a router, its deadline or the end of the grace has ended: the caller unpins its blocks."""

    lease_id: str
    state: LeaseState


@dataclass(frozen=True)
class Work:
    """What to ask the store now, in this order; lists of lease ids."""

    grant: list[str] = field(default_factory=list)
    #: Withdrawn leases: release them and reap them at once.
    release: list[str] = field(default_factory=list)
    #: Leases that D has read; reported to the store in the same call as the reap.
    done: list[str] = field(default_factory=list)
    reap: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.grant or self.release or self.done or self.reap)


class LeaseHolder:
    """The leases of one engine, in the order in which they were granted."""

    def __init__(self, *, duration_ms: int, redis_grace_ms: int, now_ms: int) -> None:
        self._duration_ms = duration_ms
        self._grace_ms = redis_grace_ms
        self.tell_delay_ms = min(TELL_DELAY_MS, duration_ms // DURATION_PER_DELAY)
        #: How often P asks about all its leases, so that it notices a store that came back empty before a lease falls
        #: due.
        self._sync_ms = max(1, duration_ms // 4)
        self._leases: dict[str, _GrantedLease] = {}
        #: The leases that are not HELD: the store has to be notified about them.
        self._untold: dict[str, _GrantedLease] = {}
        #: When to ask about all leases next; not later than the earliest deadline.
        self._sync_at_ms = now_ms + self._sync_ms
        #: When to tell the store of what is untold; in the past: at the next look.
        self._tell_at_ms = self._sync_at_ms
        self._silent_since_ms: int | None = None
        self._retry_at_ms = now_ms

    def __repr__(self) -> str:
        counts = [(state, sum(lease.state is state for lease in self._leases.values())) for state in HolderState]
        reach = "reachable" if self.reachable else "unreachable"
        return f"<LeaseHolder {' '.join([reach, *(f'{state}={count}' for state, count in counts if count)])}>"

    def __len__(self) -> int:
        """How many leases have pinned blocks."""
        return len(self.pinned())

    def pinned(self) -> list[str]:
        """The leases whose blocks are pinned, oldest first."""
        return [lease_id for lease_id, lease in self._leases.items() if lease.state in PINNING]

    @property
    def reachable(self) -> bool:
        """Whether the store answered the last call."""
        return self._silent_since_ms is None

    def grant(self, lease_id: str, now_ms: int) -> None:
        """Begin a lease; the store is told after ``tell_delay_ms``.

        Raises DuplicateLeaseError if it was granted before.
        """
        if lease_id in self._leases:
            raise DuplicateLeaseError(f"lease {lease_id} was granted before")
        lease = _GrantedLease(HolderState.GRANTING, now_ms + self._duration_ms)
        self._leases[lease_id] = lease
        self._tell(lease_id, lease, now_ms + self.tell_delay_ms)

    def done(self, lease_id: str, now_ms: int) -> None:
        """Note that D has read the blocks; the store is told after ``tell_delay_ms``. Raises NotHeldError."""
        self._withdraw(lease_id, HolderEvent.DONE, now_ms, now_ms + self.tell_delay_ms)

    def drop(self, lease_id: str, now_ms: int) -> None:
        """End a lease whose blocks no D will read. Raises NotHeldError."""
        self._withdraw(lease_id, HolderEvent.DROP, now_ms)

    def give_up_oldest(self, now_ms: int) -> str | None:
        """End the oldest lease that is kept only because the store does not answer; returns its id, or None if there is
        none.

        A lease is never given up before its deadline.
        """
        if self.reachable:
            return None
        for lease_id, lease in self._leases.items():
            if lease.state in PINNING and lease.deadline_ms <= now_ms:
                self._withdraw(lease_id, HolderEvent.GIVE_UP, now_ms)
                return lease_id
        return None

    def tell_now(self) -> None:
        """Tell the store what is untold without delay."""
        self._tell_at_ms = 0

    def sync_soon(self) -> None:
        """Ask about every lease as soon as possible, because one of them was released, perhaps before its grant."""
        self._sync_at_ms = 0

    def next_work_ms(self) -> int | None:
        """The time when ``take_work`` next has work; None: not before another method is called."""
        if not self._leases:
            return None
        if not self.reachable:
            return self._retry_at_ms
        return min(self._tell_at_ms, self._sync_at_ms) if self._untold else self._sync_at_ms

    def take_work(self, now_ms: int) -> Work:
        """Returns what to ask the store now, if anything. Then call ``granted`` and ``answered``, or ``failed``."""
        next_ms = self.next_work_ms()
        if next_ms is None or next_ms > now_ms:
            return Work()
        release = self._with_state(HolderState.WITHDRAWN)
        reap = list(release)
        if self._sync_at_ms <= now_ms:
            self._sync_at_ms = now_ms + self._sync_ms
            reap += [lease_id for lease_id, lease in self._leases.items() if lease.state is HolderState.HELD]
        self._tell_at_ms = self._sync_at_ms
        return Work(
            grant=self._with_state(HolderState.GRANTING),
            release=release,
            done=self._with_state(HolderState.TELLING),
            reap=reap,
        )

    def granted(self, lease_ids: Iterable[str], now_ms: int) -> None:
        """Note that the store holds these leases now."""
        self._silent_since_ms = None
        for lease_id in lease_ids:
            lease = self._leases.get(lease_id)
            if lease is not None and lease.state is HolderState.GRANTING:
                lease.deadline_ms = now_ms + self._duration_ms
                lease.unrenewed_grants += 1
                self._step(lease_id, HolderEvent.CONFIRMED)

    def answered(self, work: Work, answers: Iterable[LeaseStatus], now_ms: int) -> list[Ended]:
        """Take the store's answers to the reap of ``work``; returns the leases that they ended."""
        self._silent_since_ms = None
        ended = [self._answer(status, now_ms) for status in answers]
        for lease_id in (*work.release, *work.done):
            self._step(lease_id, HolderEvent.SETTLED)
        return [one for one in ended if one is not None]

    def failed(self, now_ms: int) -> list[Ended]:
        """Note that the store did not answer; returns the leases that end because the grace is over."""
        if self._silent_since_ms is None:
            self._silent_since_ms = now_ms
        self._retry_at_ms = now_ms + RETRY_MS
        self._sync_at_ms = 0
        for lease_id, lease in list(self._leases.items()):
            self._regrant_or_forget(lease_id, lease, now_ms)
        if now_ms < self._silent_since_ms + self._grace_ms:
            return []
        over = [key for key, lease in self._leases.items() if lease.state in PINNING and lease.deadline_ms <= now_ms]
        for lease_id in over:
            self._withdraw(lease_id, HolderEvent.GIVE_UP, now_ms)
        return [Ended(lease_id, LeaseState.EXPIRED) for lease_id in over]

    def _with_state(self, state: HolderState) -> list[str]:
        return [lease_id for lease_id, lease in self._untold.items() if lease.state is state]

    def _withdraw(self, lease_id: str, event: HolderEvent, now_ms: int, tell_at_ms: int = 0) -> None:
        self._step(lease_id, event, tell_at_ms)
        # The set in Redis outlives the longest deadline by a minute only: later there is nothing left to correct.
        self._leases[lease_id].forget_ms = now_ms + self._duration_ms + self._grace_ms

    def _tell(self, lease_id: str, lease: _GrantedLease, at_ms: int) -> None:
        self._untold[lease_id] = lease
        self._tell_at_ms = min(self._tell_at_ms, at_ms)

    def _step(self, lease_id: str, event: HolderEvent, tell_at_ms: int = 0) -> None:
        """``tell_at_ms``: when to tell the store, if it has to be told; 0: at once."""
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
            self._tell(lease_id, lease, tell_at_ms)

    def _answer(self, status: LeaseStatus, now_ms: int) -> Ended | None:
        lease = self._leases.get(status.lease_id)
        if lease is None or lease.state is not HolderState.HELD:
            return None  # the lease ended here before the answer came
        if status.state is LeaseState.HELD:
            self._extend(status.lease_id, lease, now_ms + status.remaining_ms)
            return None
        if status.state is LeaseState.UNKNOWN and lease.unrenewed_grants < MAX_UNRENEWED_GRANTS:
            self._step(status.lease_id, HolderEvent.UNSURE)
            return None
        self._step(status.lease_id, HolderEvent.ENDED)
        return Ended(status.lease_id, LeaseState.EXPIRED if status.state is LeaseState.UNKNOWN else status.state)

    def _extend(self, lease_id: str, lease: _GrantedLease, deadline_ms: int) -> None:
        if deadline_ms > lease.deadline_ms + RENEWED_MS:
            lease.unrenewed_grants = 0
        lease.deadline_ms = deadline_ms
        self._sync_at_ms = min(self._sync_at_ms, deadline_ms)
        self._step(lease_id, HolderEvent.KEPT)

    def _regrant_or_forget(self, lease_id: str, lease: _GrantedLease, now_ms: int) -> None:
        low = lease.deadline_ms <= now_ms + self._duration_ms // 2
        if lease.state is HolderState.HELD and low and lease.unrenewed_grants < MAX_UNRENEWED_GRANTS:
            self._step(lease_id, HolderEvent.UNSURE)
        elif lease.state not in PINNING and lease.forget_ms <= now_ms:
            del self._leases[lease_id], self._untold[lease_id]
