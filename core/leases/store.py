"""The lease store port: four verbs (grant, renew, release, reap), a listing, and a wake-up for P.

A lease is a promise about retention: P keeps the blocks *at least* until the deadline. A lease never decides whether
data is right (the fence does), so even a store that loses everything causes no wrong token.

Methods raise ValueError for a malformed id. All of them block and are safe to call from several threads; asyncio code
calls them from a thread of its own.
Durations and remaining times are milliseconds. No method takes or returns a point in time, because the clocks of two
machines are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

#: How long an outcome is remembered after the lease has ended, for a router that asks late.
OUTCOME_MEMORY_MS = 60_000
#: An engine's leases are deleted this long after the longest deadline, so that a dead engine leaves nothing behind.
DEAD_ENGINE_MARGIN_MS = 60_000


class LeaseState(StrEnum):
    """What a store answers about a lease."""

    HELD = "held"
    DONE = "done"
    RELEASED = "released"
    EXPIRED = "expired"
    #: Never granted, or ended more than a minute ago, or the store lost it.
    UNKNOWN = "unknown"


class LeaseStatus(msgspec.Struct, frozen=True, gc=False):
    """One lease as the store sees it. ``remaining_ms`` is 0 unless the lease is held.

    The garbage collector may ignore it, since it holds no containers: else each round of renewals would start a
    collection.
    """

    lease_id: str
    state: LeaseState
    remaining_ms: int = 0


class LeaseStoreError(Exception):
    """The store failed (out of memory, a key of another type). The call may or may not have had its effect."""


class LeaseStoreUnreachableError(LeaseStoreError):
    """The store did not answer (connection, timeout): other calls would most likely fail the same way now."""


class Wakeups(Protocol):
    """P's subscription to the releases of its leases."""

    def wait(self, timeout_s: float) -> bool:
        """Block until a lease is released; returns False after the timeout. Raises LeaseStoreError if the connection
        breaks.
        """

    def close(self) -> None:
        """Stop listening; a ``wait`` in progress returns False soon."""


class LeaseStore(Protocol):
    """Where leases live. Implementations: ``RedisLeaseStore``, ``MemoryLeaseStore`` (same contract tests)."""

    def grant(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[str]:
        """P: hold these leases for at least ``duration_ms``. Granting a held lease again never shortens it.

        Returns the ids of leases that were released or have ended: these are not brought back, and a reap answers their
        states.
        """

    def renew(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[LeaseStatus]:
        """Router: set ``deadline = max(old, now + duration)`` for every held lease; returns one answer per id, in
        order.

        An ended or unknown lease is not brought back.
        """
        answer = self.renew_all({engine_id: lease_ids}, duration_ms)[engine_id]
        if isinstance(answer, LeaseStoreError):
            raise answer
        return answer

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        """Router: ``renew`` the leases of many engines at once; returns the answers by engine.

        An engine whose leases the store refuses to renew has the error in the place of its answers. Raises
        LeaseStoreError if the store answers for no engine.
        """

    def release(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        """Router: set the deadline to now and wake P. Ended leases stay as they are.

        An unknown lease is remembered as released for a minute, so that a grant that comes later does not hold it.
        """
        for error in self.release_all({engine_id: lease_ids}).values():
            raise error

    def release_all(self, leases: Mapping[str, Sequence[str]]) -> dict[str, LeaseStoreError]:
        """Router: ``release`` the leases of many engines at once; returns the errors of engines that it refused.

        Raises LeaseStoreError if the store answers for no engine.
        """

    def reap(self, engine_id: str, lease_ids: Sequence[str], done: Sequence[str]) -> list[LeaseStatus]:
        """P: end ``done`` (outcome done), end all of ``lease_ids`` that are due; returns one answer for each of
        ``lease_ids``.

        A due lease ends as released if it was released, otherwise as expired. A lease that was renewed in time is
        answered as held, with its remaining time.
        """

    def held(self, engine_id: str) -> list[LeaseStatus]:
        """Every lease of the engine that has not ended, soonest deadline first.

        Leases that were released and that P has not reaped yet come first, as RELEASED.
        """

    def wakeups(self, engine_id: str) -> Wakeups:
        """Listen for releases of this engine's leases.

        Releases that come once this has returned are not missed, unless ``wait`` raises LeaseStoreError: then call this
        again, and reap.
        """

    def close(self) -> None:
        """Close all connections. Safe to call twice."""
