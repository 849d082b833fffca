"""The remote engines one rank's agent knows: connected, lost or leaving, with the reads that are in flight."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from workers.transfer.errors import NixlError, PeerBusyError, PlanError
from workers.transfer.nixl_port import PieceList, Pieces, TransferAgent
from workers.transfer.plan import plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.handshake import RankMetadata

logger = logging.getLogger(__name__)


class Peer:
    """One remote engine: NIXL's name for it and the prepared lists of its blocks and versions."""

    def __init__(self, agent: TransferAgent, remote: RankMetadata, name: str) -> None:
        self.remote = remote
        self.name = name
        self.num_reads = 0
        #: No new reads; forgotten with the last one.
        self.leaving = False
        self.blocks: PieceList = agent.prepare(blocks_of(remote), name)
        try:
            self.versions: PieceList = agent.prepare(versions_of(remote), name)
        except NixlError:
            agent.release_list(self.blocks)
            raise

    def __repr__(self) -> str:
        leaving = ", leaving" if self.leaving else ""
        return f"<Peer {self.remote.engine_id} as {self.name}: {self.num_reads} reads{leaving}>"


class PeerTable:
    """Adds and forgets peers. NIXL writes on after a peer with reads in flight was removed, so that waits for them."""

    def __init__(self, agent: TransferAgent, local: RankMetadata) -> None:
        self._agent = agent
        self._local = local
        self._peers: dict[str, Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def usable(self, engine_id: str) -> Peer | None:
        """The peer, unless it is unknown, lost or leaving."""
        peer = self._peers.get(engine_id)
        return None if peer is None or peer.leaving else peer

    def connect(self, engine_id: str, remotes: Sequence[RankMetadata]) -> None:
        """Make an engine readable. Raises TransferError; PeerBusyError while its former reads have not ended."""
        (source,) = plan(self._local, remotes)
        if source.remote.engine_id != engine_id:
            raise PlanError(f"the metadata is that of engine {source.remote.engine_id}")
        known = self._peers.get(engine_id)
        if known is not None and known.remote == source.remote and not known.leaving:
            return
        self.leave(engine_id)
        if engine_id in self._peers:
            raise PeerBusyError("reads over the former connection have not ended yet")
        self._peers[engine_id] = self._add(source.remote)

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

    def _add(self, remote: RankMetadata) -> Peer:
        if remote.engine_id == self._local.engine_id:
            return Peer(self._agent, remote, self._agent.name)
        if any(remote.agent_name == name for name in (self._agent.name, *(p.name for p in self._peers.values()))):
            # Adding a name again replaces it under the reads in flight, whose ends then cannot be known any more.
            raise PlanError(f"agent {remote.agent_name!r} belongs to another engine")
        name = self._agent.add_remote(remote.agent_metadata)
        try:
            if name != remote.agent_name:
                raise PlanError(f"the metadata is that of agent {name!r}, not of {remote.agent_name!r}")
            return Peer(self._agent, remote, name)
        except (NixlError, PlanError):
            self._remove(name)
            raise

    def _forget_if_idle(self, peer: Peer) -> None:
        if not peer.leaving or peer.num_reads:
            return
        del self._peers[peer.remote.engine_id]
        for pieces in (peer.blocks, peer.versions):
            try:
                self._agent.release_list(pieces)
            except NixlError as error:
                logger.warning("a descriptor list of %s was not released: %s", peer.name, error)
        self._remove(peer.name)

    def _remove(self, name: str) -> None:
        if name == self._agent.name:
            return
        try:
            self._agent.remove_remote(name)
        except NixlError as error:
            # NIXL forgets a dead peer's connection by itself, and then knows nothing to remove.
            logger.debug("%s was not removed: %s", name, error)


def blocks_of(rank: RankMetadata) -> Pieces:
    """A rank's cache, one piece for each block."""
    return Pieces(rank.cache_address, rank.block_bytes, rank.num_blocks, rank.cache_memory_type, rank.cache_device_id)


def versions_of(rank: RankMetadata) -> Pieces:
    """A rank's version table, one piece for each version."""
    return Pieces(rank.version_address, 8, rank.num_blocks)
