"""Sends ``Connect`` for a remote engine to the local ranks, and collects their answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.protocol.steps import Connect, Connected, Disconnect
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason


class _PendingConnect:
    """A ``Connect`` that not all ranks have answered."""

    def __init__(self, num_ranks: int) -> None:
        #: The ranks that have not answered.
        self.ranks = set(range(num_ranks))
        self._error: HandshakeError | None = None
        self._over = asyncio.Event()

    def answer(self, rank: int, error: str) -> None:
        """Take a rank's answer. The first error, or the last answer, ends the wait.

        A rank that loses the engine after it has connected answers twice.
        """
        self.ranks.discard(rank)
        if error and self._error is None:
            self._error = HandshakeError(HandshakeReason.RANK, f"rank {rank}: {error}")
        if error or not self.ranks:
            self._over.set()

    async def outcome(self) -> None:
        """Wait for the ranks. Raises HandshakeError, even if a rank lost the engine before this coroutine could run."""
        await self._over.wait()
        if self._error is not None:
            raise self._error


class LocalRanks:
    """Connects all local ranks to a remote engine, or none: if one fails, all get ``Disconnect``.

    A rank handles its messages one after another, between its reads. So at most ``concurrency`` connects run at the
    same time: a read then waits behind only a few of them, even if many engines are new.
    """

    def __init__(self, send: Callable[[Connect | Disconnect], None], num_ranks: int, concurrency: int) -> None:
        self._send = send
        self._num_ranks = num_ranks
        self._turns = asyncio.Semaphore(concurrency)
        #: Connects that are under way, by engine id.
        self._pending: dict[str, _PendingConnect] = {}
        #: By engine and rank: the number of answers still to come to each ``Connect`` that failed or was cancelled.
        self._owed: Counter[tuple[str, int]] = Counter()

    async def connect(self, engine_id: str, remotes: Sequence[RankMetadata]) -> None:
        """Return when every rank has connected. Raises HandshakeError if one cannot; may be cancelled."""
        async with self._turns:
            pending = self._pending[engine_id] = _PendingConnect(self._num_ranks)
            worked = False
            self._send(Connect(engine_id, list(remotes)))
            try:
                await pending.outcome()
                worked = True
            finally:
                del self._pending[engine_id]
                if not worked:
                    self._take_back(engine_id, pending)

    def handle(self, rank: int, message: Connected) -> bool:
        """Take a rank's answer; False if it does not belong to a call of ``connect``."""
        key = (message.engine_id, rank)
        if key in self._owed:  # a rank answers in order, so owed answers come before the pending one
            self._owed -= Counter([key])
            return True
        pending = self._pending.get(message.engine_id)
        if pending is None:
            return False
        pending.answer(rank, message.error)
        return True

    def _take_back(self, engine_id: str, pending: _PendingConnect) -> None:
        for rank in pending.ranks:
            self._owed[engine_id, rank] += 1
        self._send(Disconnect(engine_id))
