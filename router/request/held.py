"""What a request holds, and how each thing is given back. Nothing here waits."""

from __future__ import annotations

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.router.pool import Reservation, Worker, WorkerPool
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.queue.worker_queue import Waiter
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


class Held:
    """A place on a worker, a place in a queue, an open answer, and P's blocks."""

    def __init__(self, releaser: Releaser) -> None:
        self._releaser = releaser
        self.reservation: Reservation | None = None
        self.waiter: Waiter | None = None
        self.answer: HttpAnswer | None = None
        #: A P whose answer has not been read, but which may have granted a lease by now.
        self.unread_prefill: Worker | None = None
        #: The engine that holds the blocks, and the lease on them.
        self.engine_id = ""
        self.lease: HeldLease | None = None
        #: How the lease ended while the request still needed it; None: it is held, as far as this router knows.
        self.lease_end: LeaseState | None = None

    @property
    def lease_id(self) -> str:
        """Id of the lease on P's blocks; empty if there is none."""
        return "" if self.lease is None else self.lease.lease_id

    def vacate(self, request_id: str) -> None:
        """Release the place on the worker, close the open answer, and abort on a P whose answer is unread."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.close()
        unread, self.unread_prefill = self.unread_prefill, None
        if unread is not None:
            self._releaser.abort_unread(unread, request_id)
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            self._releaser.leave(reservation)

    def drop_lease(self) -> None:
        """Release the lease on P's blocks."""
        lease, self.lease = self.lease, None
        if lease is not None:
            self.give_up(lease)
        self.engine_id = ""

    def give_up(self, lease: HeldLease) -> None:
        """Release a lease, or a share in one."""
        self._releaser.release(lease)

    def __repr__(self) -> str:
        return f"<Held {self.reservation!r}, lease {self.lease_id or '-'}>"
