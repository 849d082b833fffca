"""One read in flight, from all ranks of P that this rank reads: posts and polls what the read machine decides."""

from __future__ import annotations

import logging

import numpy as np

from baton_serve.core.process.failpoints import hit
from baton_serve.core.protocol.steps import Read, ReadResult
from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.rank_protocol.transfer_errors import BackendFailedError, NixlError, PeerLostError
from baton_serve.workers.transfer.memory.local_memory import LocalMemory
from baton_serve.workers.transfer.memory.remote_engines import RemoteEngine
from baton_serve.workers.transfer.memory.version_tables import ScratchTable
from baton_serve.workers.transfer.nixl.port import TransferAgent, TransferHandle, TransferState
from baton_serve.workers.transfer.reads.fence import stale_positions
from baton_serve.workers.transfer.reads.read_machine import Post, PostKind, ReadMachine, ReadState
from baton_serve.workers.transfer.reads.read_parts import ReadPart, interleaved

logger = logging.getLogger(__name__)


class BlockRead:
    """Reads the data in pieces, then the versions, and compares them with the promise of the hand-off.

    All calls come from the agent's thread.
    """

    def __init__(
        self,
        agent: TransferAgent,
        memory: LocalMemory,
        peer: RemoteEngine,
        read: Read,
        options: TransferOptions,
        now: float,
    ) -> None:
        self.read = read
        self.peer = peer
        #: The error of a lost connection, over which no other read can succeed.
        self.lost: NixlError | None = None
        self._agent = agent
        self._memory = memory
        self._started = now
        self._local_ids = np.array(read.local_block_ids, dtype=np.int32)
        self._remote_ids = np.array(read.remote_block_ids, dtype=np.int32)
        self._parts = [
            ReadPart(rank, (self._local_ids, memory.num_blocks), (self._remote_ids, peer.num_blocks))
            for rank in peer.ranks
            if rank.num_runs
        ]
        self._pieces = interleaved(self._parts, options.piece_bytes)
        self._in_flight: list[tuple[Post, TransferHandle]] = []
        #: Where the versions of each part are read to, while their transfer is in flight.
        self._scratch: dict[int, ScratchTable] = {}
        self._num_bytes = 0
        self._num_descriptors = 0
        self._stale: set[int] = set()
        self.machine = ReadMachine(
            len(self._pieces),
            num_tables=0 if options.unsafe_disable_fence else len(self._parts),
            # At least one piece per remote rank, because the ranks may be reached over different links.
            window=max(options.window, len(self._parts)),
        )

    def step(self) -> bool:
        """Poll transfers in flight, and post what is possible, at most one piece of data; True if anything changed.

        If all data has arrived then, as it has over shared memory, the versions are read in the same call.
        """
        landed = self._poll()
        if not self._post_some():
            return landed
        self._poll()
        if self.machine.state is ReadState.CHECKING and self._post_some():
            self._poll()
        return True

    def result(self, now: float) -> ReadResult:
        """The result, once the machine has ended."""
        return ReadResult(
            self.read.read_id,
            self.machine.state.value,
            self._num_bytes,
            now - self._started,
            self.machine.error,
            self._num_descriptors,
            sorted(self._stale) if self.machine.state is ReadState.STALE else [],
        )

    def _post_some(self) -> bool:
        """Post one piece of data or all version tables; False if there is nothing to post."""
        posted = False
        while (post := self.machine.next_post()) is not None:
            posted = True
            try:
                self._in_flight.append((post, self._post(post)))
            except NixlError as error:
                self._broke(error)
            if post.kind is PostKind.DATA:
                break
        return posted

    def _post(self, post: Post) -> TransferHandle:
        if post.kind is PostKind.DATA:
            part, ids = self._pieces[post.number]
            return part.post(self._agent, ids)
        hit("rank.read.arrived")
        num_versions = self.peer.num_blocks
        table = self._scratch[post.number] = self._memory.scratch.take(num_versions)
        here, there = table.pieces_for(self._remote_ids, num_versions)
        try:
            return self._agent.post_read(table.pieces, here, self._parts[post.number].rank.versions, there)
        except NixlError:
            self._memory.scratch.give_back(self._scratch.pop(post.number))
            raise

    def _poll(self) -> bool:
        before = self._in_flight
        self._in_flight = []
        for post, transfer in before:
            if not self._land(post, transfer):
                self._in_flight.append((post, transfer))
        return len(self._in_flight) < len(before)

    def _land(self, post: Post, transfer: TransferHandle) -> bool:
        """Handle the end of the transfer; False if it has not ended and NIXL may still write.

        Any error except PeerLostError and BackendFailedError is raised, because it leaves unknown whether the transfer
        has ended. Only a bug can cause one (a peer removed or added again during its reads), and losing the rank is
        better than blocks that change while other sequences use them.
        """
        try:
            state = self._agent.state(transfer)
        except (PeerLostError, BackendFailedError) as error:
            self._broke(error)
            self._end(post, transfer)
            return True
        if state is TransferState.IN_PROGRESS:
            return False
        self._arrived(post, state)
        self._end(post, transfer)
        return True

    def _arrived(self, post: Post, state: TransferState) -> None:
        if state is TransferState.FAILED:
            self._broke(BackendFailedError("NIXL reports an error"))
        elif post.kind is PostKind.VERSIONS:
            self._compare(post.number)
        else:
            part, ids = self._pieces[post.number]
            num_descriptors, num_bytes = part.count(ids)
            self._num_descriptors += num_descriptors
            self._num_bytes += num_bytes
            self.machine.arrived()

    def _end(self, post: Post, transfer: TransferHandle) -> None:
        """Give back what a transfer used that has ended."""
        if post.kind is PostKind.VERSIONS:
            self._memory.scratch.give_back(self._scratch.pop(post.number))
        try:
            self._agent.release(transfer)
        except NixlError as error:
            logger.warning("a transfer that has ended was not released: %s", error)

    def _compare(self, source: int) -> None:
        """Compare the versions of one rank. A block is stale if any rank has overwritten its part."""
        stale = stale_positions(self.read.promise, self._scratch[source].array[self._remote_ids])
        self._stale.update(self.read.local_block_ids[position] for position in stale)
        self.machine.compared(kept=not stale)
        if stale:
            name, num_blocks = self._parts[source].rank.name, len(self._local_ids)
            logger.info("read %d of %s is stale: %d of %d blocks", self.read.read_id, name, len(stale), num_blocks)

    def _broke(self, error: NixlError) -> None:
        """Handle a failed transfer. After PeerLostError or BackendFailedError the connection may be unusable, so the
        peer counts as lost.
        """
        if isinstance(error, PeerLostError | BackendFailedError):
            self.lost = self.lost or error
        self.machine.broke(f"{type(error).__name__}: {error}")
