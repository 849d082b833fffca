"""Aborts requests on a P whose answer will not be read.

P also notices a closed connection, but not once it has written its answer to the socket: then no router knows the
lease in the answer. So a request that leaves a prefill without having read the answer also aborts the prefill by id,
on P's internal port: in the background, and once. If the call fails, the lease expires.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from core.net.client.errors import CallError
from core.process.task_end import finish_tasks

if TYPE_CHECKING:
    from core.protocol.hello import WorkerIdentity
    from router.upstream.internal_calls import InternalCalls

#: Most calls under way at once. Beyond that none is made, and the leases expire.
MAX_CALLS = 1024
#: Seconds for a call including its connection: a fraction of a lease.
CALL_TIMEOUT_S = 2.0


class _Aborted(msgspec.Struct):
    aborted: bool


_decoder = msgspec.json.Decoder(_Aborted)


class PrefillAborts:
    """The aborts under way. ``outcomes`` counts them: aborted, unknown (to P), failed, skipped (too many at once)."""

    def __init__(self, calls: InternalCalls) -> None:
        self._internal = calls
        self._calls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.outcomes: Counter[str] = Counter({"aborted": 0, "unknown": 0, "failed": 0, "skipped": 0})

    def __repr__(self) -> str:
        return f"<PrefillAborts {len(self._calls)} under way, {dict(self.outcomes)}>"

    def start(self, worker: WorkerIdentity, request_id: str) -> None:
        """Abort the request on the worker, in the background. Never raises."""
        key = worker.internal_url, request_id
        if key in self._calls:
            return
        if len(self._calls) >= MAX_CALLS:
            self.outcomes["skipped"] += 1
            return
        task = self._calls[key] = asyncio.get_running_loop().create_task(self._call(worker, request_id))
        task.add_done_callback(lambda _: self._calls.pop(key, None))

    def under_way(self, internal_url: str, request_id: str) -> asyncio.Task[None] | None:
        """The abort of this request there, if under way: until it is over, it could also hit the next attempt."""
        return self._calls.get((internal_url, request_id))

    async def close(self) -> None:
        """Wait for the calls under way, at most ``CALL_TIMEOUT_S``. If cancelled, cancels them."""
        await finish_tasks(self._calls.values())

    async def _call(self, worker: WorkerIdentity, request_id: str) -> None:
        outcome = "failed"
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                outcome = await self._ask(worker, request_id)
        except (CallError, TimeoutError, ValueError, RecursionError):
            pass  # P is gone, or its lease expires
        finally:
            self.outcomes[outcome] += 1

    async def _ask(self, worker: WorkerIdentity, request_id: str) -> str:
        status, body = await self._internal.post(worker, f"/internal/abort/{request_id}", CALL_TIMEOUT_S)
        if status == 404:
            return "unknown"
        if status != 200:
            return "failed"
        return "aborted" if _decoder.decode(body).aborted else "unknown"
