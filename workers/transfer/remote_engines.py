"""The remote engines one rank's agent knows: connected, lost or leaving, with the reads that are in flight."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

from workers.rank_protocol.transfer_errors import PeerBusyError, PlanError
from workers.sharding.plan import plan
from workers.transfer.remote_ranks import PeerRank, PeerRanks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.protocol.handshake import RankMetadata
    from workers.transfer.local_memory import LocalMemory
    from workers.transfer.nixl_port import TransferAgent

logger = logging.getLogger(__name__)


class Peer:
    """One remote engine: those of its ranks that hold something of ours."""

    def __init__(self, remotes: Sequence[RankMetadata], ranks: list[PeerRank], owned: ExitStack) -> None:
        self.engine_id = remotes[0].engine_id
        self.remotes = list(remotes)
        self.num_blocks = remotes[0].num_blocks
        #: All of them are told of a read; those with runs are read.
        self.ranks = ranks
        self.num_reads = 0
        #: No new reads; forgotten with the last one.
        self.leaving = False
        self._owned = owned

    def __repr__(self) -> str:
        leaving = ", leaving" if self.leaving else ""
        return f"<Peer {self.engine_id} as {', '.join(r.name for r in self.ranks)}: {self.num_reads} reads{leaving}>"

    def close(self) -> None:
        """Give everything back to the agent; never while a read is in flight."""
        self._owned.close()


class PeerTable:
    """Adds and forgets peers. NIXL writes on after a peer with reads in flight was removed, so that waits for them."""

    def __init__(self, agent: TransferAgent, local: RankMetadata, memory: LocalMemory) -> None:
        self._local = local
        self._memory = memory
        self._ranks = PeerRanks(agent, local, memory)
        self._peers: dict[str, Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def usable(self, engine_id: str) -> Peer | None:
        """The peer, unless it is unknown, lost or leaving."""
        peer = self._peers.get(engine_id)
        return None if peer is None or peer.leaving else peer

    def connect(self, engine_id: str, remotes: Sequence[RankMetadata]) -> None:
        """Make an engine readable. Raises TransferError, and has changed nothing then but for the engine's own former
        connection; PeerBusyError while reads over that have not ended."""
        sources = plan(self._local, remotes)
        if remotes[0].engine_id != engine_id:
            raise PlanError(f"the metadata is that of engine {remotes[0].engine_id}")
        known = self._peers.get(engine_id)
        if known is not None and known.remotes == list(remotes) and not known.leaving:
            return
        self.leave(engine_id)
        if engine_id in self._peers:
            raise PeerBusyError("reads over the former connection have not ended yet")
        with ExitStack() as undo:
            ranks = [self._ranks.add(source, undo) for source in sources]
            self._memory.reserve_scratch(sum(bool(rank.num_runs) for rank in ranks))
            self._peers[engine_id] = Peer(remotes, ranks, undo.pop_all())

    def leave(self, engine_id: str) -> None:
        """Forget an engine, now or when its last read has ended."""
        peer = self._peers.get(engine_id)
        if peer is None:
            return
        peer.leaving = True
        self._forget_if_idle(peer)

    def begin(self, peer: Peer) -> None:
        """A read from it starts."""
        peer.num_reads += 1

    def end(self, peer: Peer) -> None:
        """A read from it has ended, after every transfer of it."""
        peer.num_reads -= 1
        self._forget_if_idle(peer)

    def close(self) -> None:
        """Forget all that have no reads in flight."""
        for engine_id in list(self._peers):
            self.leave(engine_id)

    def _forget_if_idle(self, peer: Peer) -> None:
        if peer.leaving and not peer.num_reads:
            del self._peers[peer.engine_id]
            peer.close()
