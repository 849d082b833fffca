"""Everything that happens in the thread that owns the NIXL agent: commands, reads in flight, notifications."""

from __future__ import annotations

import logging
import queue
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from protocol.handshake import RankMetadata
from protocol.steps import CancelRead, Connect, Connected, Disconnect, PeerRead, Read, ReadResult
from workers.transfer.block_read import BlockRead, LocalMemory
from workers.transfer.errors import NixlError, PeerLostError, TransferError
from workers.transfer.fence import VERSION
from workers.transfer.nixl_port import Pieces, TransferAgent
from workers.transfer.notification import encode_read, parse_read
from workers.transfer.peers import Peer, PeerTable, blocks_of, versions_of
from workers.transfer.read_checks import ReadRefusedError, check_fresh, check_read

if TYPE_CHECKING:
    import threading

    from workers.rank.ports import Emit, RankMemory, TransferCommand
    from workers.transfer.options import TransferOptions

logger = logging.getLogger(__name__)


class AgentLoop:
    """Owns the agent. Registers the memory when made; raises NixlError when that fails."""

    def __init__(self, agent: TransferAgent, memory: RankMemory, emit: Emit, options: TransferOptions) -> None:
        self._agent = agent
        self._memory = memory
        self._emit = emit
        self._options = options
        self._scratch = np.zeros(memory.num_blocks, dtype=VERSION)
        scratch = Pieces(self._scratch.ctypes.data, VERSION.itemsize, memory.num_blocks)
        self.metadata = _register(agent, memory, scratch)
        self._local = LocalMemory(agent.prepare(blocks_of(self.metadata)), agent.prepare(scratch), self._scratch)
        self._peers = PeerTable(agent, self.metadata)
        self._reads: dict[int, BlockRead] = {}
        #: Local blocks that NIXL may write to.
        self._busy_blocks: set[int] = set()
        self._backoff_s = 0.0
        self._num_dropped = 0
        self._last_activity = self._next_look = time.monotonic()

    def run(self, commands: queue.SimpleQueue[TransferCommand | None], closing: threading.Event) -> None:
        """Serve until ``closing`` is set; ``None`` among the commands only wakes the loop."""
        while not closing.is_set():
            for command in _take(commands, self._patience()):
                self._obey(command)
            self._step_reads()
            self._look()

    def close(self) -> None:
        """Cancel every read, wait for their ends, give everything back.

        If one does not end in time NIXL may still write to the memory: then nothing is given back at all.
        """
        for read in self._reads.values():
            read.machine.cancel()
        deadline = time.monotonic() + self._options.close_timeout_s
        while self._reads and time.monotonic() < deadline:
            self._step_reads()
            time.sleep(self._backoff_s)
        if self._reads:
            logger.warning("%d reads had not ended when block transfer closed", len(self._reads))
            return
        self._peers.close()
        self._local.release(self._agent)
        self._agent.close()

    # --- commands ----------------------------------------------------------------------------------------------

    def _obey(self, command: TransferCommand | None) -> None:
        self._last_activity = time.monotonic()
        match command:
            case Read():
                self._start_read(command)
            case CancelRead():
                self._cancel_read(command)
            case Connect():
                self._connect(command)
            case Disconnect():
                self._peers.leave(command.engine_id)

    def _connect(self, command: Connect) -> None:
        try:
            self._peers.connect(command.engine_id, command.ranks)
        except TransferError as error:
            self._emit(Connected(command.engine_id, str(error)))
        else:
            self._emit(Connected(command.engine_id, ""))

    def _start_read(self, read: Read) -> None:
        now = time.monotonic()
        try:
            check_fresh(read.fresh, self._memory.num_blocks)
            # First of all: from here on nobody may take these blocks for what they held before.
            self._memory.versions.store(read.fresh)
            peer = self._peer_for(read)
        except ReadRefusedError as error:
            self._emit(ReadResult(read.read_id, "failed", 0, 0.0, str(error)))
            return
        self._busy_blocks.update(read.local_block_ids)
        self._peers.begin(peer)
        self._reads[read.read_id] = BlockRead(self._agent, self._local, peer, read, self._options, now)

    def _peer_for(self, read: Read) -> Peer:
        if read.read_id in self._reads:
            raise ReadRefusedError(f"there is a read {read.read_id} already")
        peer = self._peers.usable(read.engine_id)
        if peer is None:
            raise ReadRefusedError(f"not connected to engine {read.engine_id}")
        check_read(read, self._memory.num_blocks, peer.remote.num_blocks, self._busy_blocks)
        return peer

    def _cancel_read(self, command: CancelRead) -> None:
        read = self._reads.get(command.read_id)
        if read is not None:
            read.machine.cancel()

    # --- reads -------------------------------------------------------------------------------------------------

    def _step_reads(self) -> None:
        if not self._reads:
            return
        options = self._options
        happened = [read.step() for read in self._reads.values()]
        self._backoff_s = 0.0 if any(happened) else min(options.max_backoff_s, self._backoff_s * 2 + 20e-6)
        self._last_activity = time.monotonic()
        for read in [read for read in self._reads.values() if read.machine.ended]:
            self._end_read(read)

    def _end_read(self, ended: BlockRead) -> None:
        """The one exit of every read that was begun."""
        read, peer = ended.read, ended.peer
        del self._reads[read.read_id]
        self._busy_blocks.difference_update(read.local_block_ids)
        self._emit(ended.result(time.monotonic()))
        if ended.machine.tells_peer:
            self._tell(peer, read.lease_id)
        if ended.peer_lost:
            peer.leaving = True
        self._peers.end(peer)

    def _tell(self, peer: Peer, lease_id: str) -> None:
        if peer.name == self._agent.name:
            self._emit(PeerRead(lease_id))
            return
        try:
            self._agent.notify(peer.name, encode_read(lease_id))
        except NixlError as error:
            # What was read stays right; the peer finds out when the lease runs out.
            logger.warning("engine %s was not told of a read: %s", peer.remote.engine_id, error)
            if isinstance(error, PeerLostError):
                self._lose(peer, error)

    def _lose(self, peer: Peer, error: PeerLostError) -> None:
        """No read has failed that would tell the main process, which takes the engine for connected: say so."""
        peer.leaving = True
        self._emit(Connected(peer.remote.engine_id, f"{type(error).__name__}: {error}"))

    # --- notifications -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        try:
            payloads = self._agent.notifications()
        except NixlError as error:
            logger.warning("notifications were lost: %s", error)
            payloads = []
        for payload in payloads:
            self._last_activity = now
            self._hear(payload)
        quiet = now - self._last_activity > self._options.quiet_after_s
        self._next_look = now + (self._options.quiet_poll_s if quiet else self._options.poll_s)

    def _hear(self, payload: bytes) -> None:
        lease_id = parse_read(payload)
        if lease_id is not None:
            self._emit(PeerRead(lease_id))
            return
        self._num_dropped += 1
        if self._num_dropped.bit_count() == 1:  # the 1st, 2nd, 4th, 8th...: whoever sends many shall not fill the log
            logger.warning("%d notifications that are none of ours were dropped so far", self._num_dropped)

    def _patience(self) -> float:
        """Seconds to wait for a command before there is something else to do."""
        if self._reads:
            return self._backoff_s
        return max(0.0, self._next_look - time.monotonic())


def _register(agent: TransferAgent, memory: RankMemory, scratch: Pieces) -> RankMetadata:
    """Let NIXL at the rank's memory and describe it to peers. The scratch table is for us, but NIXL writes to it."""
    metadata = RankMetadata(
        engine_id=memory.engine_id,
        rank=memory.rank,
        num_ranks=memory.num_ranks,
        agent_metadata=b"",
        agent_name=agent.name,
        cache_address=memory.cache_address,
        cache_memory_type=memory.cache_memory_type,
        cache_device_id=memory.cache_device_id,
        num_blocks=memory.num_blocks,
        block_bytes=memory.block_bytes,
        version_address=memory.versions.address,
        shard=memory.shard,
    )
    for pieces in (blocks_of(metadata), versions_of(metadata), scratch):
        agent.register(pieces)
    return msgspec.structs.replace(metadata, agent_metadata=agent.metadata())


def _take(commands: queue.SimpleQueue[TransferCommand | None], timeout_s: float) -> list[TransferCommand | None]:
    """All commands that are there, or the first to come within the time."""
    taken = []
    try:
        taken.append(commands.get(block=timeout_s > 0, timeout=timeout_s or None))
        while True:
            taken.append(commands.get_nowait())
    except queue.Empty:
        return taken
