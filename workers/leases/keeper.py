"""Grants and ends P's leases. One thread talks to the store, another listens for releases.

The asyncio loop and the threads share ``core.leases.holder`` under a lock, which is never held during I/O. The loop
does not wait for the store, and wakes its thread once for many grants and reads, because a thread that wakes takes the
interpreter from the loop while P's answers are made. The engine alone ends a lease (``Engine.end_lease``): it tells the
keeper (``tell``), and the keeper asks it to (``on_end``) for a lease that the store, or its silence, has ended.

An unexpected exception in a thread ends that thread and calls ``on_failed``, so that the worker stops: without the
thread leases would never end and would hold their blocks forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from baton_serve.core.leases.holder import Ended, LeaseHolder, Work
from baton_serve.core.leases.holder_state import NotHeldError
from baton_serve.core.leases.ids import check_duration, check_id
from baton_serve.core.leases.store import LeaseState, LeaseStatus, LeaseStore, LeaseStoreError
from baton_serve.core.process.clock import monotonic_ms
from baton_serve.workers.leases.listener import LeaseListener

logger = logging.getLogger(__name__)


@dataclass
class KeeperStats:
    """Counts since the start, for metrics."""

    granted: int = 0
    done: int = 0
    #: Leases ended by a router, through the store.
    released: int = 0
    expired: int = 0
    #: Leases that no D will read, ended by this worker or, while the store was silent, by a router that asked it.
    dropped: int = 0
    #: Leases ended under memory pressure while the store did not answer.
    given_up: int = 0
    #: Notifications of reads that came after the end of their lease.
    late_done: int = 0
    store_errors: int = 0


class LeaseKeeper:
    """Grants, watches and ends the leases of one engine. Create and use it on the asyncio loop.

    Only the keeper's threads use ``store``; ``stop`` closes it.
    """

    def __init__(
        self,
        store: LeaseStore,
        engine_id: str,
        *,
        on_end: Callable[[str, LeaseState], object],
        on_failed: Callable[[Exception], object],
        duration_ms: int = 6_000,
        redis_grace_ms: int = 60_000,
    ) -> None:
        """Both callbacks run on the loop. ``on_end(lease_id, state)`` gets RELEASED or EXPIRED.

        EXPIRED includes leases that were given up because their blocks were needed while the store did not answer.

        ``on_failed(error)`` is called when a thread has failed; it must stop the worker.
        """
        self._store = store
        self._engine_id = check_id(engine_id)
        self._on_end = on_end
        self._on_failed = on_failed
        self._duration_ms = check_duration(duration_ms)
        self._changed = threading.Condition()
        self._holder = LeaseHolder(duration_ms=duration_ms, redis_grace_ms=redis_grace_ms, now_ms=monotonic_ms())
        self._stopping = False
        self._did_last_work = False
        #: Whether leases were given up since the store last answered.
        self._gave_up = False
        #: Wakes the thread when the store has to be told of grants and reads.
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)
        self._listener = LeaseListener(store, engine_id, self._sync, self._fail)
        self.stats = KeeperStats()

    def __repr__(self) -> str:
        return f"<LeaseKeeper {self._engine_id} {self._holder!r}>"

    def __len__(self) -> int:
        with self._changed:
            return len(self._holder)

    @property
    def reachable(self) -> bool:
        """Whether the store answered the last call."""
        return self._holder.reachable

    def start(self) -> None:
        """Start the threads. Call it on the loop on which ``on_end`` is to run."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._listener.start()

    async def stop(self) -> None:
        """End all leases, also in the store (one attempt), then stop the threads and close the store.

        Routers see the ends in the store and prefill elsewhere at once, instead of renewing leases of a dead engine.
        """
        with self._changed:
            pinned = self._holder.pinned()
        for lease_id in pinned:
            self.tell(lease_id, LeaseState.RELEASED)
            self._on_end(lease_id, LeaseState.RELEASED)
        if self._timer is not None:
            self._timer.cancel()
        with self._changed:
            self._holder.tell_now()
            self._stopping = True
            self._changed.notify_all()
        self._listener.stop()
        await asyncio.to_thread(self._join)
        self._store.close()

    def grant(self, lease_id: str) -> None:
        """Begin a lease: it is held from now on, and the store has it a little later.

        Raises DuplicateLeaseError, ValueError.
        """
        check_id(lease_id)
        with self._changed:
            self._holder.grant(lease_id, monotonic_ms())
        self.stats.granted += 1
        self._wake_later()

    def tell(self, lease_id: str, how: LeaseState) -> bool:
        """Tell the store that the engine has ended a lease: DONE if D has read its blocks, RELEASED if no D will.

        False if it had ended before, or was never granted.
        """
        is_read = how is LeaseState.DONE
        try:
            with self._changed:
                (self._holder.done if is_read else self._holder.drop)(lease_id, monotonic_ms())
        except NotHeldError:
            self.stats.late_done += is_read
            return False
        if is_read:
            self.stats.done += 1
            self._wake_later()
        else:
            self.stats.dropped += 1
            with self._changed:
                self._changed.notify_all()
        return True

    def give_up_oldest(self) -> str | None:
        """End the oldest lease that is kept only because the store does not answer, if any, when memory is needed.

        Returns its id, or None.
        """
        with self._changed:
            lease_id = self._holder.give_up_oldest(monotonic_ms())
        if lease_id is not None:
            self.stats.given_up += 1
            self._on_end(lease_id, LeaseState.EXPIRED)
        return lease_id

    def _wake_later(self) -> None:
        if self._timer is None:
            delay_s = self._holder.tell_delay_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake_in_time)

    def _wake_in_time(self) -> None:
        self._timer = None
        with self._changed:
            self._holder.tell_now()  # all that has come, else the thread would wake again for what came last
            self._changed.notify_all()

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.join()

    # In the thread that talks to the store.

    def _keep(self) -> None:
        try:
            while (work := self._next_work()) is not None:
                self._do(work)
        except Exception as error:
            logger.exception("the leases cannot be kept")
            self._fail(error)

    def _next_work(self) -> Work | None:
        """Wait for work and return it; None if the thread has to stop."""
        with self._changed:
            while True:
                now_ms = monotonic_ms()
                work = self._holder.take_work(now_ms)
                if self._stopping:
                    return self._last_work(work)
                if work:
                    return work
                next_ms = self._holder.next_work_ms()
                self._changed.wait(None if next_ms is None else max(0, next_ms - now_ms) / 1000)

    def _last_work(self, work: Work) -> Work | None:
        """While stopping: the ends of leases, for one last attempt to store them, then None.

        Without ends there is no last attempt, and grants alone are not stored.
        """
        did_before, self._did_last_work = self._did_last_work, True
        return work if (work.release or work.done) and not did_before else None

    def _do(self, work: Work) -> None:
        try:
            if work.grant:
                refused = self._store.grant(self._engine_id, work.grant, self._duration_ms)
                self._note_granted(work.grant, has_refused=bool(refused))
            if work.release:
                self._store.release(self._engine_id, work.release)
            if work.reap or work.done:
                answers = self._store.reap(self._engine_id, work.reap, work.done)
                self._note_answers(work, answers)
        except LeaseStoreError as error:
            self._note_failure(error)

    def _note_granted(self, lease_ids: list[str], *, has_refused: bool) -> None:
        with self._changed:
            was_away = not self._holder.reachable
            self._holder.granted(lease_ids, monotonic_ms())
            if has_refused:  # a release came first; the reap that comes now says so and ends the lease
                self._holder.sync_soon()
        self._note_reached(was_away)

    def _note_answers(self, work: Work, answers: Iterable[LeaseStatus]) -> None:
        with self._changed:
            was_away = not self._holder.reachable
            ended = self._holder.answered(work, answers, monotonic_ms())
        self._note_reached(was_away)
        self._tell(ended)

    def _note_reached(self, was_away: bool) -> None:
        if was_away:
            logger.info("the lease store answers again")
            self._gave_up = False

    def _note_failure(self, error: LeaseStoreError) -> None:
        with self._changed:
            first = self._holder.reachable
            ended = self._holder.failed(monotonic_ms())
        self.stats.store_errors += 1
        if first:
            logger.warning("the lease store does not answer, leases are kept: %s", error)
        if ended and not self._gave_up:
            logger.warning("leases are given up: the lease store has been silent for too long")
            self._gave_up = True
        self._tell(ended)

    def _fail(self, error: Exception) -> None:
        self._call(self._on_failed, error)

    def _tell(self, ended: list[Ended]) -> None:
        for one in ended:
            self._call(self._report, one)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)

    # On the loop again.

    def _report(self, ended: Ended) -> None:
        self.stats.released += ended.state is LeaseState.RELEASED
        self.stats.expired += ended.state is LeaseState.EXPIRED
        self._on_end(ended.lease_id, ended.state)

    # In the thread that listens for releases.

    def _sync(self) -> None:
        with self._changed:
            self._holder.sync_soon()
            self._changed.notify_all()
