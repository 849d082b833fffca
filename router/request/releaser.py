"""Releases what a request holds: places on workers, blocks under leases, answers that will not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_serve.router.pool import WorkerPool
    from baton_serve.router.queue.lease_limit import LeaseLimit
    from baton_serve.router.renewal.port import HeldLease
    from baton_serve.router.upstream.prefill_aborts import PrefillAborts


class Releaser:
    """One object for all requests of a router. None of its methods waits."""

    def __init__(self, pool: WorkerPool, leased: LeaseLimit, prefill_aborts: PrefillAborts) -> None:
        self._leased = leased
        self.leave = pool.leave
        self.abort_unread = prefill_aborts.start

    def release(self, lease: HeldLease) -> None:
        """End a lease, so that P may free the blocks as soon as this is safe."""
        if lease.release():
            self._leased.end(lease.lease_id)
