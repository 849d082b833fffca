"""One lease on P's blocks that several choices hold. It is renewed until the last of them has read or given it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.core.leases.store import LeaseState
    from baton_serve.router.renewal.port import HeldLease


class SharedLease:
    """The lease, and who holds it. ``lease`` is set once P's answer is known to grant one."""

    def __init__(self) -> None:
        self.lease: HeldLease | None = None
        self._is_over = False
        self._holders: dict[LeaseShare, Callable[[LeaseState], None]] = {}

    def over(self, state: LeaseState) -> None:
        """P no longer keeps the blocks: each holder is told."""
        self._is_over = True
        for tell in list(self._holders.values()):
            tell(state)

    def share(self, on_over: Callable[[LeaseState], None]) -> LeaseShare | None:
        """A part in the lease, or None if it is over. ``on_over`` is called when it is over."""
        assert self.lease is not None, "nothing is shared before P has granted it"
        if self._is_over:
            return None
        share = LeaseShare(self, self.lease)
        self._holders[share] = on_over
        return share

    def leave(self, share: LeaseShare) -> bool:
        """A holder needs the blocks no more. Returns True for the last holder, which ends the lease."""
        if self._holders.pop(share, None) is None or self._holders:
            return False
        assert self.lease is not None
        self._is_over = True
        self.lease.release()
        return True


class LeaseShare:
    """``HeldLease`` (``router/renewal/port.py``) of one choice."""

    __slots__ = ("_all", "_lease")

    is_shared = True

    def __init__(self, shared: SharedLease, lease: HeldLease) -> None:
        self._all = shared
        self._lease = lease

    def __repr__(self) -> str:
        return f"<LeaseShare of {self._lease!r}>"

    @property
    def engine_id(self) -> str:
        """Id of the engine that holds the blocks."""
        return self._lease.engine_id

    @property
    def lease_id(self) -> str:
        """Id of the lease, the same for all holders."""
        return self._lease.lease_id

    def remaining_ms(self) -> int | None:
        """Milliseconds for which P surely keeps the blocks; None: that is not known."""
        return self._lease.remaining_ms()

    def given(self) -> None:
        """Note that a D is about to be sent the parameters."""
        self._lease.given()

    def confirmed(self) -> bool:
        """Note that D has read. Returns whether that was the last holder."""
        return self._all.leave(self)

    def release(self) -> bool:
        """Give the blocks up. Returns whether that was the last holder."""
        return self._all.leave(self)
