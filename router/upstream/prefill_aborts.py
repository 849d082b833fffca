"""Aborts requests on a P whose answer will not be read.

P also notices a closed connection, but not once it has written its answer to the socket: then no router knows the
lease in the answer. So a request that leaves a prefill without having read the answer also aborts the prefill by id,
on P's internal port: in the background, and once. If the call fails, the lease expires.

Thousands of clients may leave at once. Then the aborts of each P wait for their turn, so that they take few connections
and no P holds up those of another one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from core.net.client.errors import CallError
from core.process.task_end import finish_tasks

if TYPE_CHECKING:
    from core.protocol.hello import WorkerIdentity
    from router.upstream.internal_calls import InternalCalls

#: Most calls under way at once to one P.
CALLS_AT_ONCE = 32
#: Most aborts that are not over. Beyond that none is made, and the leases expire.
MAX_ABORTS = 32768
#: Seconds for a call including its connection: a fraction of a lease.
CALL_TIMEOUT_S = 2.0
#: Seconds that an abort may wait for its turn. With its call it is then as old as a lease that nobody renews (6 s).
MAX_WAIT_S = 4.0


class _Aborted(msgspec.Struct):
    aborted: bool


_decoder = msgspec.json.Decoder(_Aborted)


class _Abort:
    """One that is not over."""

    __slots__ = ("key", "latest_s", "over", "request_id", "worker")

    def __init__(self, worker: WorkerIdentity, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.worker = worker
        self.request_id = request_id
        self.key = worker.internal_url, request_id
        #: When its call has to begin, on the loop's clock.
        self.latest_s = loop.time() + MAX_WAIT_S
        self.over: asyncio.Future[None] = loop.create_future()


class _Line:
    """The aborts of one P that wait for their turn, and the number of calls under way."""

    __slots__ = ("num_calls", "waiting")

    def __init__(self) -> None:
        self.num_calls = 0
        self.waiting: deque[_Abort] = deque()


class PrefillAborts:
    """The aborts that are not over. ``outcomes`` counts the others: aborted, unknown (to P), failed, and skipped (too
    many at once, or not its turn in time).
    """

    def __init__(self, calls: InternalCalls) -> None:
        self._internal = calls
        self._aborts: dict[tuple[str, str], _Abort] = {}
        #: By internal URL, those with calls under way.
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcomes: Counter[str] = Counter({"aborted": 0, "unknown": 0, "failed": 0, "skipped": 0})

    def __repr__(self) -> str:
        return f"<PrefillAborts {len(self._aborts)} not over, {dict(self.outcomes)}>"

    def start(self, worker: WorkerIdentity, request_id: str) -> None:
        """Abort the request on the worker, in the background. Never raises."""
        if (worker.internal_url, request_id) in self._aborts:
            return
        if len(self._aborts) >= MAX_ABORTS:
            self.outcomes["skipped"] += 1
            return
        loop = asyncio.get_running_loop()
        abort = _Abort(worker, request_id, loop)
        self._aborts[abort.key] = abort
        line = self._lines.setdefault(worker.internal_url, _Line())
        line.waiting.append(abort)
        if line.num_calls < CALLS_AT_ONCE:
            line.num_calls += 1
            task = loop.create_task(self._call_all(worker.internal_url, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def under_way(self, internal_url: str, request_id: str) -> asyncio.Future[None] | None:
        """The end of the abort of this request there, if there is one: until then it could also hit the next
        attempt.
        """
        abort = self._aborts.get((internal_url, request_id))
        return None if abort is None else abort.over

    async def close(self) -> None:
        """Wait for what is not over, at most ``MAX_WAIT_S`` and ``CALL_TIMEOUT_S``. If cancelled, cancels it."""
        try:
            await finish_tasks(self._tasks)
        finally:
            for abort in list(self._aborts.values()):
                self._end(abort, "skipped")

    async def _call_all(self, internal_url: str, line: _Line) -> None:
        """Make one call after the other, as long as an abort waits for its turn."""
        loop = asyncio.get_running_loop()
        try:
            while line.waiting:
                abort = line.waiting.popleft()
                if loop.time() > abort.latest_s:
                    self._end(abort, "skipped")
                else:
                    await self._call(abort)
        finally:
            line.num_calls -= 1
            if not line.num_calls and not line.waiting:
                del self._lines[internal_url]

    async def _call(self, abort: _Abort) -> None:
        outcome = "failed"
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                outcome = await self._ask(abort.worker, abort.request_id)
        except (CallError, TimeoutError, ValueError, RecursionError):
            pass  # P is gone, or its lease expires
        finally:
            self._end(abort, outcome)

    def _end(self, abort: _Abort, outcome: str) -> None:
        if abort.over.done():  # ``close`` was cancelled
            return
        del self._aborts[abort.key]
        self.outcomes[outcome] += 1
        abort.over.set_result(None)

    async def _ask(self, worker: WorkerIdentity, request_id: str) -> str:
        status, body = await self._internal.post(worker, f"/internal/abort/{request_id}", CALL_TIMEOUT_S)
        if status == 404:
            return "unknown"
        if status != 200:
            return "failed"
        return "aborted" if _decoder.decode(body).aborted else "unknown"
