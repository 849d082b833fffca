"""Tells our own ranks to connect to a remote engine and gathers their answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from core.protocol.steps import Connect, Disconnect
from workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.protocol.handshake import RankMetadata
    from core.protocol.steps import Connected


class _Asked:
    """A ``Connect`` on its way through the ranks."""

    def __init__(self, num_ranks: int) -> None:
        #: Those that have not answered.
        self.ranks = set(range(num_ranks))
        self._error: HandshakeError | None = None
        self._over = asyncio.Event()

    def answer(self, rank: int, error: str) -> None:
        """The first error decides, otherwise the last answer. A rank that has lost the engine since gives two."""
        self.ranks.discard(rank)
        if error and self._error is None:
            self._error = HandshakeError(HandshakeReason.RANK, f"rank {rank}: {error}")
        if error or not self.ranks:
            self._over.set()

    async def outcome(self) -> None:
        """Raises HandshakeError, also for what was lost after the last answer and before we got to run."""
        await self._over.wait()
        if self._error is not None:
            raise self._error


class OurRanks:
    """A ``Connect`` goes to all ranks or, in the end, to none: when one fails the others are told ``Disconnect``.

    Every rank does what it is told one after the other, between its reads. So only ``concurrency`` engines are
    connected at once: a read of an engine that is known already waits behind few others, however many are new.
    """

    def __init__(self, send: Callable[[Connect | Disconnect], None], num_ranks: int, concurrency: int) -> None:
        self._send = send
        self._num_ranks = num_ranks
        self._turns = asyncio.Semaphore(concurrency)
        self._asked: dict[str, _Asked] = {}
        #: Answers still to come, by engine and rank, to a ``Connect`` that nobody waits for any more.
        self._owed: Counter[tuple[str, int]] = Counter()

    async def connect(self, engine_id: str, remotes: Sequence[RankMetadata]) -> None:
        """Return when every rank has connected. Raises HandshakeError when one cannot; may be cancelled."""
        async with self._turns:
            asked = self._asked[engine_id] = _Asked(self._num_ranks)
            worked = False
            self._send(Connect(engine_id, list(remotes)))
            try:
                await asked.outcome()
                worked = True
            finally:
                del self._asked[engine_id]
                if not worked:
                    self._take_back(engine_id, asked)

    def heard(self, rank: int, message: Connected) -> bool:
        """An answer of a rank; False if it is none that ``connect`` asked for."""
        if self._settle(message.engine_id, rank):
            return True
        asked = self._asked.get(message.engine_id)
        if asked is None:
            return False
        asked.answer(rank, message.error)
        return True

    def _settle(self, engine_id: str, rank: int) -> bool:
        """A rank answers in order: what it owes comes before its answer to the ``Connect`` that is under way."""
        key = (engine_id, rank)
        if key not in self._owed:
            return False
        self._owed[key] -= 1
        if not self._owed[key]:
            del self._owed[key]
        return True

    def _take_back(self, engine_id: str, asked: _Asked) -> None:
        for rank in asked.ranks:
            self._owed[engine_id, rank] += 1
        self._send(Disconnect(engine_id))
