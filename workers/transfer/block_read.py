"""One read in flight: carries out what the read machine decides, on the agent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from protocol.steps import ReadResult
from workers.transfer.errors import BackendFailedError, NixlError, PeerLostError
from workers.transfer.fence import expected_versions, stale_positions
from workers.transfer.nixl_port import PieceList, Transfer, TransferAgent, TransferState
from workers.transfer.read_machine import VERSIONS, ReadMachine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from protocol.steps import Read
    from workers.transfer.options import TransferOptions
    from workers.transfer.peers import Peer

logger = logging.getLogger(__name__)


class LocalMemory:
    """Our own side of every read: the cache's blocks, and a scratch table that takes the versions read.

    A local block is in one read at a time, so the version of what is read into block ``i`` goes to ``scratch[i]``.
    """

    def __init__(self, blocks: PieceList, scratch_list: PieceList, scratch: NDArray[np.uint64]) -> None:
        self.blocks = blocks
        self.scratch_list = scratch_list
        self.scratch = scratch

    def release(self, agent: TransferAgent) -> None:
        """Give both lists back."""
        agent.release_list(self.blocks)
        agent.release_list(self.scratch_list)


class BlockRead:
    """Pieces of data, then the versions, then the verdict. All calls come from the agent's thread."""

    def __init__(
        self, agent: TransferAgent, local: LocalMemory, peer: Peer, read: Read, options: TransferOptions, now: float
    ) -> None:
        self.read = read
        self.peer = peer
        #: The connection is gone: no other read over it can succeed.
        self.peer_lost = False
        self._agent = agent
        self._local = local
        self._started = now
        self._local_ids = np.array(read.local_block_ids, dtype=np.int32)
        self._remote_ids = np.array(read.remote_block_ids, dtype=np.int32)
        self._expected = expected_versions(read.versions)
        self._piece_blocks = max(1, options.piece_bytes // peer.remote.block_bytes)
        self._in_flight: list[tuple[int, Transfer]] = []
        self._num_bytes = 0
        num_pieces = -(-len(read.local_block_ids) // self._piece_blocks)
        self.machine = ReadMachine(num_pieces, window=options.window, fence=not options.unsafe_disable_fence)

    def step(self) -> bool:
        """Look at what is in flight and post at most one transfer more; True if anything happened."""
        landed = self._poll()
        piece = self.machine.next_post()
        if piece is None:
            return landed
        try:
            transfer = self._post(piece)
        except NixlError as error:
            self._broke(error)
            return True
        self._in_flight.append((piece, transfer))
        self._poll()
        return True

    def result(self, now: float) -> ReadResult:
        """The one answer, once the machine has ended."""
        machine = self.machine
        return ReadResult(self.read.read_id, machine.state.value, self._num_bytes, now - self._started, machine.error)

    def _post(self, piece: int) -> Transfer:
        if piece == VERSIONS:
            local, remote, blocks = self._local.scratch_list, self.peer.versions, slice(None)
        else:
            local, remote = self._local.blocks, self.peer.blocks
            blocks = self._blocks_of(piece)
        return self._agent.post_read(local, self._local_ids[blocks], remote, self._remote_ids[blocks])

    def _blocks_of(self, piece: int) -> slice:
        return slice(piece * self._piece_blocks, (piece + 1) * self._piece_blocks)

    def _poll(self) -> bool:
        before = self._in_flight
        self._in_flight = []
        for piece, transfer in before:
            if not self._land(piece, transfer):
                self._in_flight.append((piece, transfer))
        return len(self._in_flight) < len(before)

    def _land(self, piece: int, transfer: Transfer) -> bool:
        """Take note if the transfer has ended; False while NIXL may still write.

        After any other error than these two nobody knows whether it has ended. That takes a bug (a peer removed or
        added again during its reads), and then losing the rank is better than blocks that change under their owner.
        """
        try:
            state = self._agent.state(transfer)
        except (PeerLostError, BackendFailedError) as error:
            self._broke(error)
            self._release(transfer)
            return True
        if state is TransferState.IN_PROGRESS:
            return False
        self._release(transfer)
        if state is TransferState.FAILED:
            self.machine.broke("NIXL reports an error")
        elif piece == VERSIONS:
            self._compare()
        else:
            self._num_bytes += len(self._local_ids[self._blocks_of(piece)]) * self.peer.remote.block_bytes
            self.machine.arrived()
        return True

    def _compare(self) -> None:
        stale = stale_positions(self._expected, self._local.scratch[self._local_ids])
        self.machine.compared(equal=not stale)
        if stale:
            logger.info("read %d is stale: %d of %d blocks", self.read.read_id, len(stale), len(self._local_ids))

    def _broke(self, error: NixlError) -> None:
        self.peer_lost |= isinstance(error, PeerLostError)
        self.machine.broke(f"{type(error).__name__}: {error}")

    def _release(self, transfer: Transfer) -> None:
        try:
            self._agent.release(transfer)
        except NixlError as error:
            logger.warning("a transfer that has ended was not released: %s", error)
