"""Releases leases on the P that holds them, when the lease store does not take the releases.

Without this, an abort while Redis is away would free P's blocks only when P's patience with Redis is over. P ends the
lease as if the store had told it, and tells the store when that answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from baton_serve.core.process.task_end import finish_tasks
from baton_serve.core.protocol.hello import WorkerIdentity
from baton_serve.core.protocol.leases_at_p import MAX_LEASES, RELEASE_PATH, LeaseIds, Released
from baton_serve.router.upstream.internal_calls import InternalCalls

#: Seconds for a call including its connection: a fraction of a lease.
CALL_TIMEOUT_S = 2.0

_decoder = msgspec.json.Decoder(Released)


class DirectReleases:
    """One call at a time to each engine. What comes meanwhile waits for the next one."""

    def __init__(
        self,
        calls: InternalCalls,
        worker_of: Callable[[str], WorkerIdentity | None],
        on_released: Callable[[str, Sequence[str]], None],
    ) -> None:
        """``worker_of`` finds the worker of an engine; None: it is gone, or has no internal port.

        ``on_released`` is called with an engine, and leases that it has ended or did not have.
        """
        self._internal = calls
        self._worker_of = worker_of
        self._on_released = on_released
        self._waiting: dict[str, dict[str, None]] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<DirectReleases {len(self._calls)} under way>"

    def start(self, engine_id: str, lease_ids: Iterable[str]) -> None:
        """Release the leases, in the background. Never raises.

        If a call fails, the leases that wait are dropped: the thread that renews leases asks again later.
        """
        if self._closed or (worker := self._worker_of(engine_id)) is None:
            return
        self._waiting.setdefault(engine_id, {}).update(dict.fromkeys(lease_ids))
        if engine_id not in self._calls:
            self._calls[engine_id] = asyncio.get_running_loop().create_task(self._run(engine_id, worker))

    async def close(self) -> None:
        """Wait for the calls under way, at most ``CALL_TIMEOUT_S`` for each. If cancelled, cancels them."""
        self._closed = True
        await finish_tasks(self._calls.values())

    async def _run(self, engine_id: str, worker: WorkerIdentity) -> None:
        try:
            while waiting := self._waiting.pop(engine_id, None):
                lease_ids = list(waiting)
                for start in range(0, len(lease_ids), MAX_LEASES):
                    batch = lease_ids[start : start + MAX_LEASES]
                    body = msgspec.json.encode(LeaseIds(batch))
                    answer = await self._internal.ask(worker, RELEASE_PATH, CALL_TIMEOUT_S, _decoder, body)
                    if isinstance(answer, int):
                        return  # P is gone, or is asked again
                    self._on_released(engine_id, batch)
        finally:  # not in a callback: leases that come before a callback runs would never be sent
            self._waiting.pop(engine_id, None)
            del self._calls[engine_id]
