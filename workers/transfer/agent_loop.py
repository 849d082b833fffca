"""The loop of the thread that owns the NIXL agent: handles commands, advances reads, polls for notifications."""

from __future__ import annotations

import logging
import queue
import threading
import time

import msgspec

from baton_serve.core.process.failpoints import hit
from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.protocol.steps import CancelRead, Connect, Connected, Disconnect, Read, ReadResult, TransferReport
from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.rank_protocol.transfer_errors import NixlError, PeerLostError, TransferError
from baton_serve.workers.transfer.memory.local_memory import LocalMemory, cache_of
from baton_serve.workers.transfer.memory.remote_engines import RemoteEngine, RemoteEngines
from baton_serve.workers.transfer.memory.version_tables import version_table_of
from baton_serve.workers.transfer.nixl.port import TransferAgent
from baton_serve.workers.transfer.port import Emit, RankMemory, TransferCommand, TransferEvent
from baton_serve.workers.transfer.read_notices import ReadNotice, ReadNotices, reader_of
from baton_serve.workers.transfer.reads.block_read import BlockRead
from baton_serve.workers.transfer.reads.read_checks import ReadRefusedError, check_read

logger = logging.getLogger(__name__)

#: Seconds between two polls for notifications, because NIXL cannot wake a thread. Polling every millisecond costs 2.9%
#: of one core, every 5 ms about 1%, so after ``QUIET_AFTER_S`` without an event the polls are less frequent.
POLL_S, QUIET_POLL_S, QUIET_AFTER_S = 0.001, 0.005, 1.0
#: Seconds between two polls of reads in flight: each pause is twice as long as the one before, and a step longer.
BACKOFF_STEP_S, MAX_BACKOFF_S = 20e-6, 500e-6
#: Seconds that ``close`` waits for reads in flight.
CLOSE_TIMEOUT_S = 1.0


class AgentLoop:
    """Owns the agent. The constructor registers the rank's memory, and raises NixlError if that fails."""

    def __init__(self, agent: TransferAgent, memory: RankMemory, emit: Emit, options: TransferOptions) -> None:
        self._agent = agent
        self._versions = memory.versions
        self._emit = emit
        self._options = options
        self.metadata = _register(agent, memory.metadata)
        self._local = LocalMemory(agent, self.metadata)
        self._peers = RemoteEngines(agent, self.metadata, self._local)
        self._notices = ReadNotices(agent)
        #: Results of the reads that have ended since the last report.
        self._received: list[ReadResult] = []
        self._reads: dict[int, BlockRead] = {}
        #: Local blocks that NIXL may write to.
        self._busy_blocks: set[int] = set()
        self._backoff_s = 0.0
        self._last_activity = self._next_poll = time.monotonic()

    def run(self, commands: queue.SimpleQueue[TransferCommand | None], closing: threading.Event) -> None:
        """Handle commands until ``closing`` is set; ``None`` in the queue only wakes the loop."""
        while not closing.is_set():
            for command in _take(commands, self._timeout_s()):
                self._handle(command)
            self._step_reads()
            self._poll_notifications()
            self._report()

    def close(self) -> None:
        """Cancel all reads, wait until they have ended, and release everything.

        If a read does not end in time, NIXL may still write to the memory, so nothing is released.
        """
        for read in self._reads.values():
            read.machine.cancel()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self._reads and time.monotonic() < deadline:
            self._step_reads()
            time.sleep(self._backoff_s)
        if self._reads:
            logger.warning("%d reads had not ended when block transfer closed", len(self._reads))
            return
        self._peers.close()
        self._local.scratch.close()
        self._agent.close()

    # --- commands ----------------------------------------------------------------------------------------------

    def _handle(self, command: TransferCommand | None) -> None:
        self._last_activity = time.monotonic()
        match command:
            case Read():
                self._start_read(command)
            case CancelRead():
                if (read := self._reads.get(command.read_id)) is not None:
                    read.machine.cancel()
            case Connect():
                self._connect(command)
            case Disconnect():
                self._peers.leave(command.engine_id)

    def _connect(self, command: Connect) -> None:
        why = ""
        try:
            self._peers.connect(command.engine_id, command.ranks)
        except TransferError as error:
            why = str(error)
        self._emit_in_order(Connected(command.engine_id, why))

    def _start_read(self, read: Read) -> None:
        now = time.monotonic()
        # Store the versions first, because from now on the former content of these blocks may be overwritten.
        self._versions.store(read.fresh)
        try:
            peer = self._peer_for(read)
        except ReadRefusedError as error:
            self._received.append(ReadResult(read.read_id, "failed", 0, 0.0, str(error)))
            return
        hit("rank.read.before")
        self._busy_blocks.update(read.local_block_ids)
        self._peers.begin(peer)
        self._reads[read.read_id] = BlockRead(self._agent, self._local, peer, read, self._options, now)

    def _peer_for(self, read: Read) -> RemoteEngine:
        if read.read_id in self._reads:
            raise ReadRefusedError(f"there is a read {read.read_id} already")
        peer = self._peers.usable(read.engine_id)
        if peer is None:
            raise ReadRefusedError(f"not connected to engine {read.engine_id}")
        check_read(read, self.metadata.num_blocks, peer.num_blocks, self._busy_blocks)
        return peer

    # --- reads -------------------------------------------------------------------------------------------------

    def _step_reads(self) -> None:
        if not self._reads:
            return
        happened = [read.step() for read in self._reads.values()]
        self._backoff_s = 0.0 if any(happened) else min(MAX_BACKOFF_S, self._backoff_s * 2 + BACKOFF_STEP_S)
        self._last_activity = time.monotonic()
        self._end_reads([read for read in self._reads.values() if read.machine.ended])

    def _end_reads(self, ended: list[BlockRead]) -> None:
        """The only exit of every read that was begun. D's main process learns of the end before P does, because a
        request waits for the former.
        """
        for read in ended:
            self._settle(read)
        if ended:
            self._report()
        for read in ended:
            if read.machine.tells_peer:
                self._notify(read.peer, read.read)
            self._peers.end(read.peer)

    def _settle(self, ended: BlockRead) -> None:
        read = ended.read
        del self._reads[read.read_id]
        self._busy_blocks.difference_update(read.local_block_ids)
        result = ended.result(time.monotonic())
        if ended.machine.tells_peer:
            hit("rank.read.compared")
        if ended.lost is not None:
            self._lose(ended.peer, ended.lost)
        # After ``_lose``, so that a request that reads again after this result finds the engine disconnected.
        self._received.append(result)

    def _notify(self, peer: RemoteEngine, read: Read) -> None:
        """Notify every rank of the peer whose shard overlaps that of this rank."""
        reader = reader_of(self.metadata.engine_id, read.read_id)
        for rank in peer.ranks:
            try:
                self._notices.tell(rank.name, ReadNotice(read.lease_id, rank.num_readers, reader, self.metadata.rank))
            except NixlError as error:
                # The data is valid nevertheless; on the peer the lease will expire.
                logger.warning("%s was not told of a read: %s", rank.name, error)
                if isinstance(error, PeerLostError):
                    self._lose(peer, error)

    def _lose(self, peer: RemoteEngine, error: NixlError) -> None:
        """Begin no new reads from the peer, and report its loss once to the main process, which has it as connected.

        The result of the read is not enough for this, because a cancelled read has no error.
        """
        if not peer.leaving:
            self._emit_in_order(Connected(peer.engine_id, f"{type(error).__name__}: {error}"))
        peer.leaving = True

    # --- notifications and answers -----------------------------------------------------------------------------

    def _poll_notifications(self) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        if self._notices.listen():
            self._last_activity = now
        quiet = now - self._last_activity > QUIET_AFTER_S
        self._next_poll = now + (QUIET_POLL_S if quiet else POLL_S)

    def _emit_in_order(self, event: TransferEvent) -> None:
        """Emit an event after the report of everything that happened before it."""
        self._report()
        self._emit(event)

    def _report(self) -> None:
        """Emit one message for all reads that have ended in this turn of the loop."""
        sent, received, self._received = self._notices.take_sent(), self._received, []
        if sent or received:
            self._emit(TransferReport(sent, received))

    def _timeout_s(self) -> float:
        """Seconds to wait for a command before reads or notifications have to be polled."""
        return self._backoff_s if self._reads else max(0.0, self._next_poll - time.monotonic())


def _register(agent: TransferAgent, metadata: RankMetadata) -> RankMetadata:
    """Register the rank's memory with NIXL; returns its description for peers."""
    for region in (cache_of(metadata), version_table_of(metadata)):
        agent.register(region)
    return msgspec.structs.replace(metadata, agent_name=agent.name, agent_metadata=agent.metadata())


def _take(commands: queue.SimpleQueue[TransferCommand | None], timeout_s: float) -> list[TransferCommand | None]:
    """All queued commands; if there are none, wait at most ``timeout_s`` for one."""
    taken = []
    try:
        taken.append(commands.get(block=timeout_s > 0, timeout=timeout_s or None))
        while True:
            taken.append(commands.get_nowait())
    except queue.Empty:
        return taken
