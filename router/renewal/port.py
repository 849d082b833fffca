"""The port to the leases that a router keeps alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.leases.store import LeaseState


class LeaseRenewer(Protocol):
    """The leases this router keeps alive (``lease_client.py``). None of these block."""

    def track(self, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None]) -> None:
        """Renew from now on. ``on_over`` is called on the loop when P keeps them no longer: DONE (read), or lost."""

    def tracks(self, engine_id: str, lease_id: str) -> bool:
        """It is renewed for a request already."""

    def untrack(self, engine_id: str, lease_id: str) -> None:
        """Renew no longer: D has read, or nobody wants the blocks."""

    def release(self, engine_id: str, lease_id: str) -> None:
        """Renew no longer and tell P to free the blocks now."""

    def remaining_ms(self, engine_id: str, lease_id: str) -> int | None:
        """Until the deadline, as of the last renewal; None: not tracked, or nothing known yet."""

    def __len__(self) -> int:
        """Those it renews."""

    def counters(self) -> Mapping[str, int]:
        """What happened to leases so far, by name."""
