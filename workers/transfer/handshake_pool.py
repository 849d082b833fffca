"""Who of the remote engines is known: one future for each, bounded in number, remembered until forgotten.

Lives in the main process's event loop. Handshakes run as tasks of their own; a request that waits for one can go away
without ending it for the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum

import msgspec

from protocol.handoff import KVTransferParams
from protocol.steps import Connect, Connected, Disconnect
from workers.transfer.errors import HandshakeError, HandshakeReason
from workers.transfer.handshake_fetch import HandshakeFetcher, Target, target_of

logger = logging.getLogger(__name__)


class HandshakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of ``HandshakePool``."""

    #: Seconds for one attempt: its turn has come, all ranks there asked, all ranks here connected.
    timeout_s: float = 10.0
    #: Handshakes done at once.
    concurrency: int = 8
    #: Seconds after a failure in which requests for the same engine fail at once; doubles up to the maximum.
    min_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    #: Remote engines remembered; the one unused for longest goes first, never one that is read from.
    max_engines: int = 256


class PeerState(StrEnum):
    """A remote engine as the pool sees it."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    FAILED = "failed"


class _Peer:
    """One remote engine."""

    def __init__(self) -> None:
        self.state = PeerState.CONNECTING
        self.task: asyncio.Task[None] | None = None
        #: Ranks of ours that have not answered ``Connect`` yet, and the future they complete.
        self.waiting_ranks: set[int] = set()
        self.connected: asyncio.Future[None] | None = None
        self.num_reads = 0
        self.num_failures = 0
        self.retry_at = 0.0
        self.last_error: HandshakeError | None = None


class HandshakePool:
    """The engine's way to remote engines. All methods are called from one event loop.

    ``send`` passes a message on to every rank of ours; their answers come back through ``on_connected``.
    """

    def __init__(
        self,
        send: Callable[[Connect | Disconnect], None],
        *,
        num_ranks: int,
        token: str | None,
        compatibility_hash: str,
        options: HandshakeOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._num_ranks = num_ranks
        self._options = options or HandshakeOptions()
        self._fetcher = HandshakeFetcher(token, compatibility_hash)
        self._slots = asyncio.Semaphore(self._options.concurrency)
        self._clock = clock
        #: In order of last use.
        self._peers: dict[str, _Peer] = {}

    def __repr__(self) -> str:
        return f"<HandshakePool {len(self._peers)} engines>"

    async def connect(self, params: KVTransferParams) -> None:
        """Return once every rank of ours can read from the engine that ``params`` names; at once if they can already.

        Raises HandshakeError. Cancelling it leaves the handshake running for others.
        """
        target = target_of(params)
        peer = self._peers.pop(target.engine_id, None)
        if peer is None:
            self._make_room()
            peer = _Peer()
        self._peers[target.engine_id] = peer
        if peer.state is PeerState.CONNECTED:
            return
        if peer.state is PeerState.FAILED and peer.last_error is not None and self._clock() < peer.retry_at:
            raise HandshakeError(peer.last_error.reason, f"{peer.last_error} (not tried again yet)")
        if peer.task is None:
            peer.state = PeerState.CONNECTING
            peer.task = asyncio.create_task(self._attempt(target, peer), name=f"handshake {target.engine_id}")
            peer.task.add_done_callback(_retrieve)
        task = peer.task
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise HandshakeError(HandshakeReason.FORGOTTEN, "the engine was forgotten meanwhile") from None
            raise

    def on_connected(self, rank: int, message: Connected) -> None:
        """A rank of ours has answered ``Connect``; or, with an error and unasked, has lost the engine since."""
        peer = self._peers.get(message.engine_id)
        if peer is None:
            return
        if peer.state is PeerState.CONNECTED and message.error:
            peer.state = PeerState.CONNECTING  # the next ``connect`` meets it anew
        if peer.connected is None or peer.connected.done():
            return
        if message.error:
            peer.connected.set_exception(HandshakeError(HandshakeReason.RANK, f"rank {rank}: {message.error}"))
            return
        peer.waiting_ranks.discard(rank)
        if not peer.waiting_ranks:
            peer.connected.set_result(None)

    def read_started(self, engine_id: str) -> None:
        """A read from the engine was given to the ranks: do not forget it."""
        peer = self._peers.get(engine_id)
        if peer is not None:
            peer.num_reads += 1

    def read_ended(self, engine_id: str, *, failed: bool) -> None:
        """It has ended. After ``failed`` the ranks may have lost the engine: the next ``connect`` meets it anew."""
        peer = self._peers.get(engine_id)
        if peer is None:
            return
        peer.num_reads = max(0, peer.num_reads - 1)
        if failed and peer.state is PeerState.CONNECTED:
            peer.state = PeerState.CONNECTING

    def forget(self, engine_id: str) -> None:
        """Disconnect; requests that wait for the engine get a HandshakeError. Reads in flight go on to their end."""
        peer = self._peers.pop(engine_id, None)
        if peer is None:
            return
        if peer.task is not None:
            peer.task.cancel()
        self._send(Disconnect(engine_id))

    def states(self) -> dict[str, PeerState]:
        """Every remote engine, by id, for metrics."""
        return {engine_id: peer.state for engine_id, peer in self._peers.items()}

    async def close(self) -> None:
        """End every attempt and give back connections."""
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fetcher.close()

    async def _attempt(self, target: Target, peer: _Peer) -> None:
        """One try; notes in ``peer`` how it went. Raises HandshakeError."""
        try:
            await self._try(target, peer)
        except HandshakeError as error:
            self._note_failure(target, peer, error)
            raise
        else:
            peer.state = PeerState.CONNECTED
            peer.num_failures = 0
        finally:
            peer.task = None
            peer.connected = None

    async def _try(self, target: Target, peer: _Peer) -> None:
        try:
            # The wait for a turn is part of it: engines that hang must not add up for who comes after them.
            async with asyncio.timeout(self._options.timeout_s), self._slots:
                ranks = await self._fetcher.fetch(target)
                peer.waiting_ranks = set(range(self._num_ranks))
                peer.connected = asyncio.get_running_loop().create_future()
                self._send(Connect(target.engine_id, ranks))
                await peer.connected
        except TimeoutError:
            where = f"engine {target.engine_id} at {target.host}:{target.port}"
            raise HandshakeError(HandshakeReason.TIMEOUT, f"{where}: {self._options.timeout_s:g} s passed") from None

    def _note_failure(self, target: Target, peer: _Peer, error: HandshakeError) -> None:
        backoff_s = min(self._options.max_backoff_s, self._options.min_backoff_s * 2**peer.num_failures)
        peer.state = PeerState.FAILED
        peer.num_failures = min(peer.num_failures + 1, 30)
        peer.retry_at = self._clock() + backoff_s
        peer.last_error = error
        logger.warning("no handshake with engine %s: %s", target.engine_id, error)

    def _make_room(self) -> None:
        """Forget the engine unused for longest. With all in use there is one more than the maximum."""
        if len(self._peers) < self._options.max_engines:
            return
        idle = (engine_id for engine_id, peer in self._peers.items() if not peer.num_reads and peer.task is None)
        oldest = next(idle, None)
        if oldest is not None:
            self.forget(oldest)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Nobody may be left to hear of a failure; it was noted and logged."""
    if not task.cancelled():
        task.exception()
