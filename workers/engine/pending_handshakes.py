"""One task for each sequence that waits for the handshake with its P."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.workers.engine.ports import Connector


class PendingHandshakes:
    """Calls ``on_end(seq_id, error)`` once for each ``start``, on the loop; ``error`` is None if P can be read from.

    ``error`` is the connector's exception, or a CancelledError if this class or the connector cancelled the handshake.
    """

    def __init__(self, connector: Connector, on_end: Callable[[int, BaseException | None], None]) -> None:
        self._connector = connector
        self._on_end = on_end
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, seq_id: int, params: KVTransferParams) -> None:
        """Begin the sequence's handshake in the background; if P can be read from already, call ``on_end`` now."""
        if self._connector.is_connected(params.remote_engine_id):
            self._on_end(seq_id, None)
            return
        task = asyncio.create_task(self._connector.connect(params), name=f"handshake for sequence {seq_id}")
        self._tasks[seq_id] = task
        task.add_done_callback(lambda done: self._finish(seq_id, done))

    def _finish(self, seq_id: int, task: asyncio.Task[None]) -> None:
        del self._tasks[seq_id]
        self._on_end(seq_id, asyncio.CancelledError() if task.cancelled() else task.exception())

    def cancel(self, seq_id: int) -> None:
        """Cancel the sequence's handshake; does nothing if it has ended."""
        task = self._tasks.get(seq_id)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        self.cancel_all()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
