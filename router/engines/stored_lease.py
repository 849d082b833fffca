"""A lease in Redis, which ``renewal`` keeps alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.renewal.port import HeldLease, LeaseRenewer


class StoredLease:
    """Implements ``HeldLease``. The fence guards D's reads, so this lease may be released at any time."""

    __slots__ = ("_renewer", "engine_id", "lease_id")

    is_shared = False

    def __init__(self, renewer: LeaseRenewer, engine_id: str, lease_id: str) -> None:
        self._renewer = renewer
        self.engine_id = engine_id
        self.lease_id = lease_id

    def remaining_ms(self) -> int | None:
        """Milliseconds until the deadline that the last renewal confirmed; None: not known."""
        return self._renewer.remaining_ms(self.engine_id, self.lease_id)

    def given(self) -> None:
        """Nothing changes: a read after the end of the lease is caught by the fence."""

    def confirmed(self) -> bool:
        """Stop renewing: D has read."""
        self._renewer.untrack(self.engine_id, self.lease_id)
        return True

    def release(self) -> bool:
        """Stop renewing, and have P free the blocks now."""
        self._renewer.release(self.engine_id, self.lease_id)
        return True

    def __repr__(self) -> str:
        return f"<StoredLease {self.lease_id} of {self.engine_id}>"


def may_have_read(lease: HeldLease | None) -> bool:
    """Whether a D may have read the blocks of a request with this lease, as far as the store tells.

    There was nothing to read, or the lease's state is unknown, or others read it too.
    """
    return lease is None or lease.is_shared or lease.remaining_ms() is None
