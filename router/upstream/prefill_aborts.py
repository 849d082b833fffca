"""Aborts requests on a P whose answer will not be read.

P also notices a closed connection, but not once it has written its answer to the socket: then no router knows the
lease in the answer. So a request that leaves a prefill without having read the answer also aborts the prefill by id,
on P's internal port: in the background, and once. If the call fails, the lease expires.

Thousands of clients may leave at once. Then the aborts of each P queue, so that they take few connections and no P
holds up the aborts of another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton_serve.core.process.task_end import finish_tasks
from baton_serve.core.protocol.hello import WorkerIdentity
from baton_serve.router.upstream.internal_calls import InternalCalls

log = logging.getLogger("baton.router")

#: Most calls under way at once to one P, not counting hastened ones.
CALLS_AT_ONCE = 32
#: Most aborts of one P that are not over. Beyond that none is made, and the leases expire.
MAX_ABORTS = 16384
#: Seconds for a call including its connection: a fraction of a lease.
CALL_TIMEOUT_S = 2.0


class _Aborted(msgspec.Struct):
    aborted: bool


_decoder = msgspec.json.Decoder(_Aborted)


@dataclass(slots=True, eq=False)
class _Abort:
    """An abort that is not over."""

    worker: WorkerIdentity
    request_id: str
    #: When its call has to begin, on the loop's clock: later the lease has expired anyway.
    latest_s: float
    #: Done when it is over.
    over: asyncio.Future[None]
    has_begun: bool = False


@dataclass(slots=True, eq=False)
class _WorkerQueue:
    """The aborts of one P."""

    #: By request id, the aborts that are not over.
    open: dict[str, _Abort] = field(default_factory=dict)
    #: The aborts that wait for their turn. An abort that was hastened has begun, and is passed over.
    waiting: deque[_Abort] = field(default_factory=deque)
    #: Tasks that make calls, one after the other.
    num_callers: int = 0


class PrefillAborts:
    """The aborts that are not over. ``outcomes`` counts the others: aborted, unknown (to P), failed, and skipped (too
    many at once, or its turn did not come before the lease had expired).
    """

    def __init__(self, calls: InternalCalls, lease_duration_s: float) -> None:
        self._internal = calls
        self._lease_duration_s = lease_duration_s
        #: By internal URL, the workers that have aborts.
        self._queues: dict[str, _WorkerQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.outcomes: Counter[str] = Counter({"aborted": 0, "unknown": 0, "failed": 0, "skipped": 0})

    def __repr__(self) -> str:
        return f"<PrefillAborts {len(self)} not over, {dict(self.outcomes)}>"

    def __len__(self) -> int:
        """Number of aborts that are not over."""
        return sum(len(queue.open) for queue in self._queues.values())

    def start(self, worker: WorkerIdentity, request_id: str) -> None:
        """Abort the request on the worker, in the background. Never raises."""
        queue = self._queues.get(worker.internal_url) or _WorkerQueue()
        if request_id in queue.open:
            return
        if self._is_closed or len(queue.open) >= MAX_ABORTS:
            self.outcomes["skipped"] += 1
            return
        self._queues[worker.internal_url] = queue
        loop = asyncio.get_running_loop()
        abort = _Abort(worker, request_id, loop.time() + self._lease_duration_s, loop.create_future())
        queue.open[request_id] = abort
        queue.waiting.append(abort)
        if queue.num_callers < CALLS_AT_ONCE:
            queue.num_callers += 1
            self._run(self._call_all(queue))

    def hasten(self, internal_url: str, request_id: str) -> asyncio.Future[None] | None:
        """Make the call for this request now, if the call still waits for its turn.

        The next attempt on the same worker waits until the call is over, because the call could abort it as well.
        Returns what is done then; do not cancel it. None: there is no such abort, or it is over.
        """
        queue = self._queues.get(internal_url)
        abort = None if queue is None else queue.open.get(request_id)
        if queue is None or abort is None:
            return None
        if not abort.has_begun:
            abort.has_begun = True
            self._run(self._call(queue, abort))
        return abort.over

    async def close(self) -> None:
        """Make the calls that can be made within ``CALL_TIMEOUT_S``, and end all others. None begins any more."""
        self._is_closed = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await finish_tasks(self._tasks)
        finally:
            for queue in list(self._queues.values()):
                for abort in list(queue.open.values()):
                    self._end(queue, abort, "failed" if abort.has_begun else "skipped")
                queue.waiting.clear()

    def _run(self, calls: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(calls)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call_all(self, queue: _WorkerQueue) -> None:
        """Make one call after the other, as long as an abort waits for its turn."""
        loop = asyncio.get_running_loop()
        try:
            while queue.waiting:
                abort = queue.waiting.popleft()
                if abort.has_begun:
                    continue
                if loop.time() > abort.latest_s:
                    self._end(queue, abort, "skipped")
                else:
                    abort.has_begun = True
                    await self._call(queue, abort)
                await asyncio.sleep(0)  # a call that fails may not have waited for anything
        finally:
            queue.num_callers -= 1

    async def _call(self, queue: _WorkerQueue, abort: _Abort) -> None:
        outcome, path = "failed", f"/internal/abort/{abort.request_id}"
        try:
            answer = await self._internal.ask(abort.worker, path, CALL_TIMEOUT_S, _decoder)
            if isinstance(answer, _Aborted):
                outcome = "aborted" if answer.aborted else "unknown"
            elif answer == 404:
                outcome = "unknown"
        except Exception:  # the aborts that wait for their turn must still be made
            log.exception("the abort of %s met a bug", abort.request_id)
        finally:
            self._end(queue, abort, outcome)

    def _end(self, queue: _WorkerQueue, abort: _Abort, outcome: str) -> None:
        if queue.open.get(abort.request_id) is not abort:  # ``close`` has ended it
            return
        del queue.open[abort.request_id]
        if not queue.open:
            del self._queues[abort.worker.internal_url]
        self.outcomes[outcome] += 1
        if not abort.over.done():
            abort.over.set_result(None)
