"""The router's side of the leases: a thread that renews and releases, however busy the event loop is.

The loop and the thread share a lock that is held only for pure code (``core.leases.renewal``), never during I/O: a slow
Redis stalls only this thread. The leases of all engines that are due are renewed in one exchange, because the thread
waits for the interpreter after each while the loop is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from baton_serve.core.leases.ids import check_duration, check_id
from baton_serve.core.leases.renewal import EngineWork, LeaseOver, TrackedLeases
from baton_serve.core.leases.store import LeaseState, LeaseStatus, LeaseStore, LeaseStoreError
from baton_serve.core.process.clock import monotonic_ms

logger = logging.getLogger(__name__)

#: Seconds until the thread continues after a bug; well below the usual duration of a lease.
RESTART_S = 0.5
#: Most engines for which the log says that their leases cannot be renewed.
MAX_COMPLAINTS = 100


class LeaseClient:
    """Keeps this router's leases alive. All methods are called on one event loop; only ``close`` takes time.

    The caller closes ``store``, after ``close``. ``redis_grace_ms`` must be the same as P's.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        duration_ms: int,
        renew_interval_ms: int,
        redis_grace_ms: int,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Raises ValueError for a lease duration that no store accepts."""
        self._store = store
        self._duration_ms = check_duration(duration_ms)
        self._clock = clock
        self._changed = threading.Condition()
        self._book = TrackedLeases(
            duration_ms=duration_ms, renew_interval_ms=renew_interval_ms, redis_grace_ms=redis_grace_ms
        )
        self._stopping = False
        #: When the thread will look for work, by itself or because it is about to be woken, by ``clock``; in the past
        #: while it is awake.
        self._sleeps_until_ms = -math.inf
        #: See ``LeaseRenewer``.
        self.on_unsent: list[Callable[[str, Sequence[str]], None]] = []
        self._on_over: dict[tuple[str, str], Callable[[LeaseState], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)
        self._silent = False
        #: Engines whose leases the store refuses to renew although it answers.
        self._refused: set[str] = set()
        #: Every key exists from the start and is changed by one thread only, so that reading needs no lock.
        self._counts = {f"answered_{state}": 0 for state in LeaseState} | {
            "tracked": 0,
            "read": 0,
            "lost": 0,
            "release_asked": 0,
            "release_sent": 0,
            "release_direct": 0,
            "store_error": 0,
            "bug": 0,
        }

    def __repr__(self) -> str:
        return f"<LeaseClient tracked={len(self)} {'silent' if self._silent else 'answered'}>"

    def __len__(self) -> int:
        """The number of tracked leases."""
        with self._changed:
            return len(self._book)

    def track(self, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None]) -> None:
        """Renew the lease, soon and from then on. P must just have answered with it.

        ``on_over`` is called on the loop, once, when the lease is over (see ``core.leases.renewal``): DONE (D has read)
        or lost; not if it was untracked or released before. Raises AlreadyTrackedError, and ValueError for a malformed
        id.
        """
        check_id(engine_id)
        check_id(lease_id)
        with self._changed:
            self._start()  # before the book knows the lease: an error must not leave a lease that is renewed for ever
            self._wake(self._book.track(engine_id, lease_id, self._clock()))
        self._on_over[engine_id, lease_id] = on_over
        self._counts["tracked"] += 1

    def tracks(self, engine_id: str, lease_id: str) -> bool:
        """Whether the lease is tracked already, so that ``track`` would refuse it."""
        return (engine_id, lease_id) in self._on_over

    def untrack(self, engine_id: str, lease_id: str) -> None:
        """Stop renewing, since D has read. Unknown leases are ignored, since a lease may just have ended."""
        self._on_over.pop((engine_id, lease_id), None)
        with self._changed:
            self._book.untrack(engine_id, lease_id)

    def release(self, engine_id: str, lease_id: str) -> None:
        """Stop renewing, and have P free the blocks now. Retried until the lease has expired by itself.

        Raises ValueError for a malformed id.
        """
        check_id(engine_id)
        check_id(lease_id)
        self._on_over.pop((engine_id, lease_id), None)
        with self._changed:
            now_ms = self._clock()
            self._book.release(engine_id, lease_id, now_ms)
            self._wake(now_ms)
        self._counts["release_asked"] += 1
        if self._silent:  # the thread may be waiting for the store
            self._tell_unsent(engine_id, [lease_id])

    def released_by_engine(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        """The engine itself has ended these leases, so the store need not be told."""
        with self._changed:
            num_released = self._book.released_elsewhere(engine_id, lease_ids)
        self._counts["release_direct"] += num_released

    def remaining_ms(self, engine_id: str, lease_id: str) -> int | None:
        """Milliseconds until the deadline that the last renewal confirmed; None if the lease is not tracked.

        None also once the deadline has passed: then Redis does not answer this router or P, and P keeps the blocks for
        a time that only P knows.
        """
        with self._changed:
            return self._book.remaining_ms(engine_id, lease_id, self._clock()) or None

    def counters(self) -> Mapping[str, int]:
        """Counts so far: answers to renewals by state, leases tracked, read and lost, releases, failed calls."""
        return dict(self._counts)

    async def close(self) -> None:
        """Send the releases that are left, once, and stop the thread. Leases still tracked expire by themselves."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._on_over.clear()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        self.on_unsent.clear()  # the last attempt may have told of some

    def _wake(self, due_ms: int) -> None:
        """Have the thread look for work at that time, if it would sleep longer. Call it with the lock held."""
        loop = self._start()
        if due_ms < self._sleeps_until_ms:
            self._sleeps_until_ms = due_ms
            # Not now: the thread would take the interpreter from the loop, while a token is on its way to the client.
            loop.call_soon(self._notify)

    def _start(self) -> asyncio.AbstractEventLoop:
        """Start the thread, unless it runs. Raises RuntimeError if there is no room for one; later calls try again."""
        if self._loop is None:
            self._thread.start()
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # The renewing thread.

    def _run(self) -> None:
        while not self._renews_until_told():
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, RESTART_S)
        with self._changed:
            last = self._book.take_releases()
        self._do(last)

    def _renews_until_told(self) -> bool:
        """Renew until ``close``; False after a bug. The caller then restarts it: otherwise all leases would expire."""
        try:
            while (works := self._next_works()) is not None:
                self._do(works)
        except Exception:
            logger.exception("the renewal of leases met a bug; again in %g s", RESTART_S)
            self._counts["bug"] += 1
            return False
        return True

    def _next_works(self) -> list[EngineWork] | None:
        """Wait for work; returns None when the thread is to stop."""
        with self._changed:
            while not self._stopping:
                now_ms = self._clock()
                if works := self._book.take_work(now_ms):
                    return works
                next_ms = self._book.next_work_ms()
                self._sleeps_until_ms = math.inf if next_ms is None else next_ms
                self._changed.wait(None if next_ms is None else max(0, next_ms - now_ms) / 1000)
                self._sleeps_until_ms = -math.inf
        return None

    def _do(self, works: list[EngineWork]) -> None:
        left = {work.engine_id: work for work in works}
        try:
            try:
                self._send(left)
            except LeaseStoreError:
                raise
            except Exception:
                logger.exception("the renewal of leases met a bug; each engine's leases are tried alone")
                self._counts["bug"] += 1
                self._send_each(left)
        except LeaseStoreError as error:
            self._note_silence(error)
            self._put_off(left, are_all_unsent=True)

    def _send_each(self, left: dict[str, EngineWork]) -> None:
        """Send the work of each engine by itself, so that a bug in one engine's work does not stop other renewals.

        Raises LeaseStoreError.
        """
        for engine_id, work in list(left.items()):
            try:
                self._send({engine_id: work})
            except LeaseStoreError:
                raise
            except Exception:
                logger.exception("the leases of engine %s met a bug; they are tried again", engine_id)
                self._put_off([engine_id])
            del left[engine_id]

    def _send(self, left: dict[str, EngineWork]) -> None:
        """Send the releases, and then the renewals. What the store has answered is no longer ``left``.

        Raises LeaseStoreError if there is no answer to the rest.
        """
        self._release(left)
        self._renew(left)
        if self._silent:
            logger.info("leases are renewed again")
        self._silent = False

    def _release(self, left: dict[str, EngineWork]) -> None:
        works = [work for work in left.values() if work.release]
        if not works:
            return
        errors = self._store.release_all({work.engine_id: work.release for work in works})
        for work in works:
            del left[work.engine_id]
            if error := errors.get(work.engine_id):
                self._refuse(work.engine_id, error)
                continue
            with self._changed:
                self._book.released(work.engine_id, work.release)
            self._counts["release_sent"] += len(work.release)
            if work.renew:
                left[work.engine_id] = EngineWork(work.engine_id, [], work.renew)
            else:
                self._refused.discard(work.engine_id)

    def _renew(self, left: dict[str, EngineWork]) -> None:
        if not left:
            return
        sent_ms = self._clock()
        answers = self._store.renew_all({work.engine_id: work.renew for work in left.values()}, self._duration_ms)
        for engine_id, answer in answers.items():
            if isinstance(answer, LeaseStoreError):  # this engine's keys are broken; those of other engines may not be
                self._refuse(engine_id, answer)
            else:
                self._note_answer(engine_id, answer, sent_ms)
            del left[engine_id]

    def _note_answer(self, engine_id: str, answer: list[LeaseStatus], sent_ms: int) -> None:
        for state, num in Counter(status.state for status in answer).items():
            self._counts[f"answered_{state}"] += num
        with self._changed:
            over = self._book.answered(engine_id, answer, sent_ms, self._clock())
        self._tell(over)
        self._refused.discard(engine_id)

    def _refuse(self, engine_id: str, error: LeaseStoreError) -> None:
        self._note_refusal(engine_id, error)
        self._put_off([engine_id])

    def _put_off(self, engine_ids: Collection[str], *, are_all_unsent: bool = False) -> None:
        """Have these engines tried again later, and report the unsent releases, new ones too, of these engines or, with
        ``are_all_unsent``, of every engine.
        """
        with self._changed:
            now_ms = self._clock()
            over = [one for engine_id in engine_ids for one in self._book.failed(engine_id, now_ms)]
            releases = self._book.take_releases()
        self._tell(over)
        for work in releases:
            if are_all_unsent or work.engine_id in engine_ids:
                self._call(self._tell_unsent, work.engine_id, work.release)
        self._counts["store_error"] += 1

    def _note_silence(self, error: LeaseStoreError) -> None:
        """Log one line, and no further one until the store answers again."""
        if not self._silent:
            logger.warning("leases cannot be renewed: %s", error)
        self._silent = True

    def _note_refusal(self, engine_id: str, error: LeaseStoreError) -> None:
        """Log one line, and no further one about this engine until its leases can be renewed again."""
        if len(self._refused) >= MAX_COMPLAINTS:  # else engines that are gone would keep others out of the log for ever
            with self._changed:
                self._refused = {known for known in self._refused if known in self._book}
        if engine_id not in self._refused and len(self._refused) < MAX_COMPLAINTS:
            self._refused.add(engine_id)
            logger.warning("the leases of engine %s cannot be renewed: %s", engine_id, error)

    def _tell(self, over: list[LeaseOver]) -> None:
        for one in over:
            self._counts["lost" if one.lost else "read"] += 1
            if one.lost:
                logger.info("lease %s of engine %s is lost: %s", one.lease_id, one.engine_id, one.state)
            self._call(self._end, one)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed, so all requests are over
            self._loop.call_soon_threadsafe(callback, *args)

    # On the loop again.

    def _end(self, over: LeaseOver) -> None:
        on_over = self._on_over.pop((over.engine_id, over.lease_id), None)
        if on_over is not None:  # else the lease was untracked while this call was queued
            on_over(over.state)

    def _tell_unsent(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        for tell in self.on_unsent:
            tell(engine_id, lease_ids)
