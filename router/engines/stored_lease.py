"""A lease in Redis, which ``renewal`` keeps alive."""

from __future__ import annotations

from collections.abc import Callable

from baton_serve.core.leases.store import LeaseState
from baton_serve.router.renewal.port import LeaseRenewer
from baton_serve.router.request.exchange import Exchange


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


def hold(
    renewer: LeaseRenewer, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None] | None
) -> StoredLease:
    """The lease, renewed from now on; ``on_over`` None: it is not renewed, only released."""
    if on_over is not None:
        renewer.track(engine_id, lease_id, on_over)
    return StoredLease(renewer, engine_id, lease_id)


def may_have_read(request: Exchange) -> bool:
    """Whether a D may have read the blocks of a request whose lease is in the store.

    There was nothing to read, or the lease has ended, or its state is unknown, or others read it too. An expired lease
    does not mean that the read failed: late reads are good until the blocks are overwritten, and then D prefills by
    itself.
    """
    lease = request.held.lease
    return lease is None or lease.is_shared or request.held.lease_end is not None or lease.remaining_ms() is None
