"""The interface of the lease renewal for the rest of the router."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from baton_serve.core.leases.store import LeaseState


class HeldLease(Protocol):
    """The lease on the blocks of one request, from P's answer until it is read, released or lost. No method blocks.

    ``router/engines`` makes it; how it is renewed depends on the engine that holds the blocks.
    """

    @property
    def engine_id(self) -> str:
        """Id of the engine that holds the blocks."""

    @property
    def lease_id(self) -> str:
        """Id of the lease, unique in its engine."""

    def remaining_ms(self) -> int | None:
        """Milliseconds for which P surely keeps the blocks; None: that is not known."""

    def given(self) -> None:
        """Note that a D is about to be sent the parameters: from now on it may read the blocks at any time."""

    @property
    def is_shared(self) -> bool:
        """Whether other choices of the request hold it too, so that it lives on after this one's read."""

    def confirmed(self) -> bool:
        """D has answered, so it has read the blocks: stop renewing. Returns False if others hold the lease."""

    def release(self) -> bool:
        """Stop renewing, and have P free the blocks as soon as this is safe. Returns False if others hold the lease."""


class LeaseRenewer(Protocol):
    """Keeps the leases of this router alive (``lease_client.py``). No method blocks."""

    #: Called on the loop with an engine, and leases whose releases the store does not take: after each attempt, and at
    #: once while the store is known to be silent.
    on_unsent: list[Callable[[str, Sequence[str]], None]]

    def track(self, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None]) -> None:
        """Renew from now on. ``on_over`` is called on the loop when the lease is over: DONE (read) or lost."""

    def tracks(self, engine_id: str, lease_id: str) -> bool:
        """Whether the lease is already renewed for a request."""

    def untrack(self, engine_id: str, lease_id: str) -> None:
        """Stop renewing: D has read, or the blocks are no longer needed."""

    def release(self, engine_id: str, lease_id: str) -> None:
        """Stop renewing, and tell P to free the blocks now."""

    def released_by_engine(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        """The engine itself has ended these leases, so the store need not be told."""

    def remaining_ms(self, engine_id: str, lease_id: str) -> int | None:
        """Milliseconds until the deadline that the last renewal confirmed; None: not tracked, or not known."""

    def __len__(self) -> int:
        """The number of leases that are renewed."""

    def counters(self) -> Mapping[str, int]:
        """Counts of what happened to leases so far, by name."""
