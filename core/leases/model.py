"""The leases of one engine as a table, without I/O: what the Lua scripts do, in Python, for the in-memory store.

Time is passed in as ``now_ms`` and must not go backwards. The verbs are those of ``core.leases.store.LeaseStore``.
Router and P race each other by design, so every verb is legal in every phase and the table below has no gaps.

           | grant      renew      release     due        finish
  unknown  | held       .          released    .          done
  held     | held       held       releasing   expired    done
  releasing| .          .          .           released   done
  done, released, expired: no verb changes them; forgotten 60 s later (unknown again)

A release of an unknown lease has overtaken its grant, or the store has lost the lease: the grant that comes then, or
again, does not hold it.

``due`` happens only inside ``reap``: an overdue lease is *held* until P asks about it, because only P may free the
blocks. A renewal that comes before that still counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from baton_serve.core.leases.store import LeaseState, LeaseStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: How long an outcome is remembered after the lease has ended, for a router that asks late.
OUTCOME_MEMORY_MS = 60_000
#: An engine's leases are deleted this long after the longest deadline, so that a dead engine leaves nothing behind.
DEAD_ENGINE_MARGIN_MS = 60_000


class Phase(StrEnum):
    """The state of a lease in the store. ``RELEASING``: released by a router or by P, not yet reaped by P."""

    UNKNOWN = "unknown"
    HELD = "held"
    RELEASING = "releasing"
    DONE = "done"
    RELEASED = "released"
    EXPIRED = "expired"


class Verb(StrEnum):
    """What happens to a lease."""

    GRANT = "grant"
    RENEW = "renew"
    RELEASE = "release"
    DUE = "due"
    FINISH = "finish"


ENDED = (Phase.DONE, Phase.RELEASED, Phase.EXPIRED)

NEXT: dict[tuple[Phase, Verb], Phase] = {
    (Phase.UNKNOWN, Verb.GRANT): Phase.HELD,
    (Phase.UNKNOWN, Verb.RENEW): Phase.UNKNOWN,
    (Phase.UNKNOWN, Verb.RELEASE): Phase.RELEASED,
    (Phase.UNKNOWN, Verb.DUE): Phase.UNKNOWN,
    (Phase.UNKNOWN, Verb.FINISH): Phase.DONE,
    (Phase.HELD, Verb.GRANT): Phase.HELD,
    (Phase.HELD, Verb.RENEW): Phase.HELD,
    (Phase.HELD, Verb.RELEASE): Phase.RELEASING,
    (Phase.HELD, Verb.DUE): Phase.EXPIRED,
    (Phase.HELD, Verb.FINISH): Phase.DONE,
    (Phase.RELEASING, Verb.GRANT): Phase.RELEASING,
    (Phase.RELEASING, Verb.RENEW): Phase.RELEASING,
    (Phase.RELEASING, Verb.RELEASE): Phase.RELEASING,
    (Phase.RELEASING, Verb.DUE): Phase.RELEASED,
    (Phase.RELEASING, Verb.FINISH): Phase.DONE,
    **{(ended, verb): ended for ended in ENDED for verb in Verb},
}

#: The state that the store answers for each phase.
ANSWER: dict[Phase, LeaseState] = {
    Phase.UNKNOWN: LeaseState.UNKNOWN,
    Phase.HELD: LeaseState.HELD,
    Phase.RELEASING: LeaseState.RELEASED,
    Phase.DONE: LeaseState.DONE,
    Phase.RELEASED: LeaseState.RELEASED,
    Phase.EXPIRED: LeaseState.EXPIRED,
}


@dataclass
class _StoredLease:
    phase: Phase
    #: While held: the deadline. While releasing: when it was released. After the end: when it will be forgotten.
    time_ms: int

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


class LeaseTable:
    """All leases of one engine, and the outcomes of those that ended in the last minute."""

    def __init__(self) -> None:
        self._leases: dict[str, _StoredLease] = {}
        #: The time at which all leases that have not ended are deleted.
        self._expires_at_ms = 0

    def __repr__(self) -> str:
        counts = {phase.value: sum(lease.phase is phase for lease in self._leases.values()) for phase in Phase}
        return f"<LeaseTable {' '.join(f'{name}={count}' for name, count in counts.items() if count)}>"

    def __len__(self) -> int:
        """The number of leases and remembered outcomes."""
        return len(self._leases)

    def grant(self, lease_ids: Sequence[str], duration_ms: int, now_ms: int) -> list[str]:
        """Hold new leases. A held lease is never shortened, and an ended one is not brought back.

        Returns those that are not held.
        """
        self._forget(now_ms)
        for lease_id in lease_ids:
            self._extend(lease_id, Verb.GRANT, now_ms + duration_ms)
        self._set_expiry_after(lease_ids, now_ms)
        return [lease_id for lease_id in lease_ids if self._phase(lease_id) is not Phase.HELD]

    def renew(self, lease_ids: Sequence[str], duration_ms: int, now_ms: int) -> list[LeaseStatus]:
        """Set ``deadline = max(old, now + duration)`` for every held lease; returns one answer per id."""
        self._forget(now_ms)
        for lease_id in lease_ids:
            self._extend(lease_id, Verb.RENEW, now_ms + duration_ms)
        self._set_expiry_after(lease_ids, now_ms)
        return [self._status(lease_id, now_ms) for lease_id in lease_ids]

    def release(self, lease_ids: Sequence[str], now_ms: int) -> bool:
        """Mark held leases for P to end, remember unknown ones as released; returns True if P is to be woken."""
        self._forget(now_ms)
        found = False
        for lease_id in lease_ids:
            phase = self._phase(lease_id)
            found = found or phase not in ENDED
            if phase is Phase.UNKNOWN:
                self._end(lease_id, Verb.RELEASE, now_ms)
            elif phase is Phase.HELD:
                self._step(lease_id, Verb.RELEASE, now_ms)
        self._set_expiry_after(lease_ids, now_ms)
        return found

    def reap(self, lease_ids: Sequence[str], done: Iterable[str], now_ms: int) -> list[LeaseStatus]:
        """End ``done``, end what is due of ``lease_ids``, answer for each of ``lease_ids``.

        Deletes leases that are overdue by ``DEAD_ENGINE_MARGIN_MS`` and not in ``lease_ids``: P has forgotten them.
        """
        self._forget(now_ms)
        for lease_id in done:
            self._end(lease_id, Verb.FINISH, now_ms)
        for lease_id in lease_ids:
            if self._due(lease_id, now_ms):
                self._end(lease_id, Verb.DUE, now_ms)
        self._sweep(now_ms)
        self._set_expiry(now_ms)
        return [self._status(lease_id, now_ms) for lease_id in lease_ids]

    def held(self, now_ms: int) -> list[LeaseStatus]:
        """Leases that have not ended: released ones first, then the soonest deadline first."""
        self._forget(now_ms)
        alive = [(lease.phase is Phase.HELD, lease.time_ms, key) for key, lease in self._alive()]
        return [self._status(lease_id, now_ms) for _, _, lease_id in sorted(alive)]

    def _alive(self) -> list[tuple[str, _StoredLease]]:
        return [(key, lease) for key, lease in self._leases.items() if not lease.ended]

    def _phase(self, lease_id: str) -> Phase:
        lease = self._leases.get(lease_id)
        return Phase.UNKNOWN if lease is None else lease.phase

    def _step(self, lease_id: str, verb: Verb, time_ms: int) -> None:
        phase = NEXT[self._phase(lease_id), verb]
        if phase is not Phase.UNKNOWN:
            self._leases[lease_id] = _StoredLease(phase, time_ms)

    def _extend(self, lease_id: str, verb: Verb, deadline_ms: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is None:
            self._step(lease_id, verb, deadline_ms)
        elif lease.phase is Phase.HELD:
            self._step(lease_id, verb, max(lease.time_ms, deadline_ms))

    def _end(self, lease_id: str, verb: Verb, now_ms: int) -> None:
        if self._phase(lease_id) not in ENDED:
            self._step(lease_id, verb, now_ms + OUTCOME_MEMORY_MS)

    def _due(self, lease_id: str, now_ms: int) -> bool:
        lease = self._leases.get(lease_id)
        return lease is not None and not lease.ended and lease.time_ms <= now_ms

    def _status(self, lease_id: str, now_ms: int) -> LeaseStatus:
        phase = self._phase(lease_id)
        remaining_ms = max(0, self._leases[lease_id].time_ms - now_ms) if phase is Phase.HELD else 0
        return LeaseStatus(lease_id, ANSWER[phase], remaining_ms)

    def _sweep(self, now_ms: int) -> None:
        for key, lease in self._alive():
            if lease.time_ms <= now_ms - DEAD_ENGINE_MARGIN_MS:
                del self._leases[key]

    def _forget(self, now_ms: int) -> None:
        """Delete what Redis would let expire: old outcomes, and all leases of an engine that sends no commands."""
        silent = now_ms >= self._expires_at_ms
        for key, lease in list(self._leases.items()):
            if (lease.ended and lease.time_ms <= now_ms) or (not lease.ended and silent):
                del self._leases[key]

    def _set_expiry_after(self, lease_ids: Sequence[str], now_ms: int) -> None:
        if lease_ids:  # without any, no script runs
            self._set_expiry(now_ms)

    def _set_expiry(self, now_ms: int) -> None:
        longest = max((lease.time_ms for _, lease in self._alive() if lease.phase is Phase.HELD), default=now_ms)
        self._expires_at_ms = max(longest, now_ms) + DEAD_ENGINE_MARGIN_MS
