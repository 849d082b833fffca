"""The remote engines that the agent of a rank can read: connected, or leaving while reads are in flight."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.workers.rank_protocol.transfer_errors import PeerBusyError, PlanError
from baton_serve.workers.sharding.plan import plan
from baton_serve.workers.transfer.memory.local_memory import LocalMemory
from baton_serve.workers.transfer.memory.remote_ranks import RemoteRank, RemoteRanks
from baton_serve.workers.transfer.nixl.port import TransferAgent


class RemoteEngine:
    """One remote engine, with those of its ranks whose shards overlap the local rank's shard."""

    def __init__(self, remotes: Sequence[RankMetadata], ranks: list[RemoteRank], owned: ExitStack) -> None:
        self.engine_id = remotes[0].engine_id
        self.remotes = list(remotes)
        self.num_blocks = remotes[0].num_blocks
        #: All these ranks are notified of a read; the ranks with runs are read.
        self.ranks = ranks
        self.num_reads = 0
        #: If True, no new read begins, and the engine is forgotten when the last read ends.
        self.leaving = False
        self._owned = owned

    def close(self) -> None:
        """Remove the engine's ranks from the agent. No read may be in flight."""
        self._owned.close()


class RemoteEngines:
    """Connects and forgets remote engines.

    An engine with reads in flight is forgotten only when these have ended, because NIXL would continue to write to
    local memory after the engine's ranks were removed.
    """

    def __init__(self, agent: TransferAgent, local: RankMetadata, memory: LocalMemory) -> None:
        self._local = local
        self._memory = memory
        self._ranks = RemoteRanks(agent, local, memory)
        self._peers: dict[str, RemoteEngine] = {}

    def usable(self, engine_id: str) -> RemoteEngine | None:
        """The engine, or None if it is unknown or leaving."""
        peer = self._peers.get(engine_id)
        return None if peer is None or peer.leaving else peer

    def connect(self, engine_id: str, remotes: Sequence[RankMetadata]) -> None:
        """Connect an engine. Raises TransferError, after which the engine is not connected.

        Raises PeerBusyError while reads over the former connection to the same engine have not ended.
        """
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
            self._memory.scratch.reserve(sum(bool(rank.num_runs) for rank in ranks), remotes[0].num_blocks)
            self._peers[engine_id] = RemoteEngine(remotes, ranks, undo.pop_all())

    def leave(self, engine_id: str) -> None:
        """Forget an engine, now or when its last read has ended."""
        peer = self._peers.get(engine_id)
        if peer is None:
            return
        peer.leaving = True
        self._forget_if_idle(peer)

    def begin(self, peer: RemoteEngine) -> None:
        peer.num_reads += 1

    def end(self, peer: RemoteEngine) -> None:
        """Count a read from the engine that has ended, with all of its transfers."""
        peer.num_reads -= 1
        self._forget_if_idle(peer)

    def close(self) -> None:
        """Forget all engines; those with reads in flight are kept until these have ended."""
        for engine_id in list(self._peers):
            self.leave(engine_id)

    def _forget_if_idle(self, peer: RemoteEngine) -> None:
        if peer.leaving and not peer.num_reads:
            del self._peers[peer.engine_id]
            peer.close()
