"""What the rest of the router sees of the renewal of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.leases.store import LeaseState


class LeaseRenewer(Protocol):
    """Keeps the leases of this router alive (``lease_client.py``). No method blocks."""

    def track(self, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None]) -> None:
        """Renew from now on. ``on_over`` is called on the loop when P keeps them no longer: DONE (read), or lost."""

    def tracks(self, engine_id: str, lease_id: str) -> bool:
        """The lease is renewed for a request already."""

    def untrack(self, engine_id: str, lease_id: str) -> None:
        """Stop renewing: D has read, or the blocks are not wanted any more."""

    def release(self, engine_id: str, lease_id: str) -> None:
        """Stop renewing, and tell P to free the blocks now."""

    def remaining_ms(self, engine_id: str, lease_id: str) -> int | None:
        """Until the deadline, as of the last renewal; None: not tracked, or nothing known yet."""

    def __len__(self) -> int:
        """The number of leases that are renewed."""

    def counters(self) -> Mapping[str, int]:
        """Counts of what happened to leases so far, by name."""
