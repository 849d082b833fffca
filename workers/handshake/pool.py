"""The remote engines that this engine can read from, each connected once for all requests.

Runs in the main process's event loop. Each handshake is a task of its own, so that it continues for other requests if
one request that waits for it is cancelled.

A peer that hangs delays only its own requests, because of these bounds. Waiting for a peer costs a task, a socket, and
a thread while its name is looked up. Since a peer or a name server that hangs costs the whole timeout, there is no
queue: all engines are asked at once, at most ``max_engines``. A peer gets more sockets only when its first rank has
answered. Local ranks load the metadata between their reads, which delays other requests, so they load it for at most
``concurrency`` engines at once, and only after all bytes have arrived.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from baton_serve.core.net.tls import InternalTls
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.protocol.steps import Connect, Connected, Disconnect
from baton_serve.workers.handshake.fetch import HandshakeFetcher, Target, target_of
from baton_serve.workers.handshake.local_ranks import LocalRanks
from baton_serve.workers.handshake.peer_engine import PeerEngine
from baton_serve.workers.handshake.peer_view import HandshakeStats, PeerEngineState, PeerView
from baton_serve.workers.handshake.resolver import MAX_ADDRESSES, Lookup, Resolver, look_up
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason, PlanError
from baton_serve.workers.sharding.plan import check_pair

logger = logging.getLogger(__name__)


class HandshakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of ``HandshakePool``."""

    #: Seconds for one attempt: to fetch the metadata, to wait for its turn, and to connect all local ranks.
    timeout_s: float = 10.0
    #: Number of engines that the local ranks connect to at once.
    concurrency: int = 8
    #: Most remote engines kept. The least recently used one is forgotten first, unless it is connecting or read.
    max_engines: int = 256


class HandshakePool:
    """Connects the local ranks to remote engines. All methods are called on one event loop.

    ``local`` are the local ranks. ``send`` sends a message to all of them; their answers come to ``on_connected``.
    ``clock`` returns seconds. ``lookup`` returns the addresses of a host name and is called in threads. ``tls``: None
    for handshakes without TLS.
    """

    def __init__(
        self,
        send: Callable[[Connect | Disconnect], None],
        *,
        local: Sequence[RankMetadata],
        token: str | None,
        compatibility_hash: str,
        tls: InternalTls | None = None,
        options: HandshakeOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        lookup: Lookup = look_up,
    ) -> None:
        self._send = send
        self._local = tuple(local)
        self._options = options or HandshakeOptions()
        self._fetcher = HandshakeFetcher(
            token,
            compatibility_hash,
            resolver=Resolver(lookup, self._options.max_engines),
            try_s=self._options.timeout_s / (MAX_ADDRESSES + 1),
            tls=tls,
        )
        self._ranks = LocalRanks(send, len(self._local), self._options.concurrency)
        self._clock = clock
        #: The remote engines by id, the least recently used first.
        self._peers: dict[str, PeerEngine] = {}
        #: Engine ids of the reads that were sent to the ranks and have not ended on all of them. Not part of
        #: ``PeerEngine``, because a read continues when its engine is forgotten.
        self._reads: dict[int, str] = {}
        #: Those that were given up. NIXL may still write to their blocks, and their engines, which have not answered
        #: these reads, will probably not answer the next one.
        self._stuck: set[int] = set()
        self._failures: Counter[str] = Counter()
        self._num_done, self._done_seconds = 0, 0.0

    # --- for requests ------------------------------------------------------------------------------------------

    async def connect(self, params: KVTransferParams) -> None:
        """Return once every local rank can read from the engine that ``params`` names, at once if it is connected.

        Raises HandshakeError. If this is cancelled, the handshake continues for other requests.
        """
        target = target_of(params)
        self._refuse_stuck(target.engine_id)
        peer = self._peer(target.engine_id)
        if peer.state is PeerEngineState.CONNECTED:
            return
        refusal = peer.refusal(self._clock())
        if refusal is not None:
            raise refusal
        task = peer.task or self._begin(target, peer)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise HandshakeError(HandshakeReason.FORGOTTEN, "the engine was forgotten meanwhile") from None
            raise

    def is_connected(self, engine_id: str) -> bool:
        """Whether a read from the engine may be sent now: all local ranks are connected, no read is stuck."""
        peer = self._peers.get(engine_id)
        return peer is not None and peer.state is PeerEngineState.CONNECTED and not self._num_stuck(engine_id)

    def forget(self, engine_id: str) -> None:
        """Disconnect an engine; requests that wait for it get a HandshakeError. Reads in flight continue."""
        peer = self._peers.pop(engine_id, None)
        if peer is None:
            return
        if peer.task is not None:
            peer.task.cancel()
        self._send(Disconnect(engine_id))

    async def close(self) -> None:
        """End all attempts, with their connections."""
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- from the local ranks ----------------------------------------------------------------------------------

    def on_connected(self, rank: int, message: Connected) -> None:
        """Handle a local rank's answer to ``Connect``, or its later error, which means that it has lost the engine."""
        if not self._ranks.handle(rank, message) and message.error:
            self._lose(message.engine_id, f"rank {rank}: {message.error}")

    def read_started(self, engine_id: str, read_id: int) -> None:
        """Note a read that was sent to the ranks: its engine must not be forgotten, and was used last."""
        self._reads[read_id] = engine_id
        if engine_id in self._peers:
            self._peers[engine_id] = self._peers.pop(engine_id)

    def read_given_up(self, read_id: int) -> None:
        """Note a read that takes too long. Until it has ended, ``connect`` refuses its engine with STUCK."""
        if read_id in self._reads:
            self._stuck.add(read_id)

    def read_ended(self, engine_id: str, read_id: int, *, failed: bool) -> None:
        """Note a read that has ended on every rank. If it failed, the ranks may have lost the connection to the engine
        that they read from, so the next request connects to it again.
        """
        self._reads.pop(read_id, None)
        self._stuck.discard(read_id)
        if failed:
            self._lose(engine_id, "a read from it failed")

    # --- for people --------------------------------------------------------------------------------------------

    def states(self) -> dict[str, PeerView]:
        """Every remote engine by id, the most recently used last."""
        reads = Counter(self._reads.values())
        stuck = Counter(self._reads[read_id] for read_id in self._stuck)
        return {key: self._view(peer, reads[key], stuck[key]) for key, peer in self._peers.items()}

    def stats(self) -> HandshakeStats:
        states = [peer.state for peer in self._peers.values()]
        return HandshakeStats(
            states={state.value: states.count(state) for state in PeerEngineState},
            failures=dict(self._failures),
            num_done=self._num_done,
            done_seconds=self._done_seconds,
            stuck_reads=len(self._stuck),
        )

    # --- internal ----------------------------------------------------------------------------------------------

    def _num_stuck(self, engine_id: str) -> int:
        return sum(self._reads[read_id] == engine_id for read_id in self._stuck)

    def _refuse_stuck(self, engine_id: str) -> None:
        num_stuck = self._num_stuck(engine_id)
        if num_stuck:
            what = f"{num_stuck} reads from engine {engine_id} were given up and have not ended"
            raise HandshakeError(HandshakeReason.STUCK, what)

    def _peer(self, engine_id: str) -> PeerEngine:
        """The engine's entry, created if necessary, and now the most recently used. Raises HandshakeError."""
        peer = self._peers.pop(engine_id, None)
        if peer is None:
            self._make_room()
            peer = PeerEngine()
        self._peers[engine_id] = peer
        return peer

    def _make_room(self) -> None:
        """Forget the least recently used engine if there are too many. Raises HandshakeError if all are in use."""
        if len(self._peers) < self._options.max_engines:
            return
        for engine_id, peer in self._peers.items():
            if peer.task is None and engine_id not in self._reads.values():
                self.forget(engine_id)
                return
        raise HandshakeError(HandshakeReason.TOO_MANY, f"{len(self._peers)} other engines are being met or read from")

    def _begin(self, target: Target, peer: PeerEngine) -> asyncio.Task[None]:
        task = asyncio.create_task(self._attempt(target, peer), name=f"handshake {target.engine_id}")
        task.add_done_callback(_retrieve)
        peer.began(task)
        return task

    async def _attempt(self, target: Target, peer: PeerEngine) -> None:
        """One attempt; its outcome is stored in ``peer``. Raises HandshakeError."""
        began = self._clock()
        try:
            await self._try(target)
        except HandshakeError as error:
            peer.failed(error, self._clock())
            self._failures[error.reason.value] += 1
            logger.warning("no handshake with engine %s: %s", target.engine_id, error)
            raise
        else:
            peer.connected()
            self._num_done += 1
            self._done_seconds += self._clock() - began
        finally:
            peer.task = None

    async def _try(self, target: Target) -> None:
        waits_for = f"engine {target.engine_id} at {target.host}:{target.port}"
        try:
            async with asyncio.timeout(self._options.timeout_s):
                remotes = await self._fetcher.fetch(target)
                check_pair(self._local, remotes)  # before the ranks connect, which would have to be undone
                waits_for = f"our own ranks to connect to {waits_for}"
                await self._ranks.connect(target.engine_id, remotes)
        except PlanError as error:
            raise HandshakeError(HandshakeReason.INCOMPATIBLE, str(error)) from error
        except TimeoutError:
            what = f"waited {self._options.timeout_s:g} s for {waits_for}"
            raise HandshakeError(HandshakeReason.TIMEOUT, what) from None

    def _lose(self, engine_id: str, why: str) -> None:
        peer = self._peers.get(engine_id)
        if peer is not None and peer.state is PeerEngineState.CONNECTED:
            peer.lost(why, self._clock())
            self._failures[HandshakeReason.LOST.value] += 1

    def _view(self, peer: PeerEngine, reads: int, stuck: int) -> PeerView:
        error = peer.last_error
        return PeerView(
            state=peer.state,
            reason=error.reason.value if error else "",
            error=str(error) if error else "",
            failure_age_s=round(self._clock() - peer.failed_at, 3) if error else None,
            reads=reads,
            stuck=stuck,
        )


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark the task's exception as retrieved: it was logged, and maybe no request waits for the task any more."""
    if not task.cancelled():
        task.exception()
