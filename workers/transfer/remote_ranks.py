"""One remote rank in the agent: NIXL's name for it and the prepared lists of what is read of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from workers.limits import MAX_AGENT_NAME_CHARS
from workers.rank_protocol.transfer_errors import NixlError, PlanError
from workers.transfer.local_memory import blocks_of, versions_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from core.protocol.handshake import RankMetadata
    from workers.sharding.plan import RankSource
    from workers.transfer.local_memory import LocalMemory
    from workers.transfer.nixl_port import PieceList, Pieces, TransferAgent

logger = logging.getLogger(__name__)


class PeerRank:
    """One rank of a remote engine. The lists are None where nothing is read and the rank is only told.

    Run ``r`` of block ``i`` is piece ``r * num_blocks + i`` of ``local`` and of ``remote``, each with its own number of
    blocks.
    """

    def __init__(self, source: RankSource, name: str) -> None:
        self.name = name
        #: How many of our engine's ranks tell it of a read.
        self.num_readers = source.num_readers
        self.num_runs = len(source.runs)
        self.bytes_per_block = sum(run.num_bytes for run in source.runs)
        self.local: PieceList = None
        self.remote: PieceList = None
        self.versions: PieceList = None

    def __repr__(self) -> str:
        return f"<PeerRank {self.name}: {self.num_runs} runs>"


class PeerRanks:
    """Adds remote ranks to the agent."""

    def __init__(self, agent: TransferAgent, local: RankMetadata, memory: LocalMemory) -> None:
        self._agent = agent
        self._local = local
        self._memory = memory
        self._names = {agent.name}

    def add(self, source: RankSource, undo: ExitStack) -> PeerRank:
        """Get to know a rank. Raises TransferError; closing ``undo`` gives back what was added until then, or later."""
        rank = PeerRank(source, self._meet(source.remote, undo))
        if source.runs:
            here = tuple((run.local_offset, run.num_bytes) for run in source.runs)
            there = [(run.remote_offset, run.num_bytes) for run in source.runs]
            rank.local = self._memory.acquire(here)
            undo.callback(_release, rank.name, lambda: self._memory.release(here))
            rank.remote = self._prepare(rank, blocks_of(source.remote, there), undo)
            rank.versions = self._prepare(rank, versions_of(source.remote), undo)
        return rank

    def _meet(self, remote: RankMetadata, undo: ExitStack) -> str:
        ours = self._local
        if (remote.engine_id, remote.rank, remote.agent_name) == (ours.engine_id, ours.rank, self._agent.name):
            return self._agent.name
        if remote.agent_name in self._names:
            # Adding a name again replaces it under the reads in flight, whose ends then cannot be known any more.
            raise PlanError(f"agent {remote.agent_name!r} belongs to another engine or rank")
        name = self._agent.add_remote(remote.agent_metadata)
        if name in self._names:
            shown = name[:MAX_AGENT_NAME_CHARS]
            raise PlanError(f"the metadata is that of agent {shown!r}, which belongs to another engine or rank")
        self._names.add(name)
        undo.callback(self._remove, name)
        if name != remote.agent_name:
            raise PlanError(
                f"the metadata is that of agent {name[:MAX_AGENT_NAME_CHARS]!r}, not of {remote.agent_name!r}"
            )
        return name

    def _prepare(self, rank: PeerRank, pieces: Pieces, undo: ExitStack) -> PieceList:
        prepared = self._agent.prepare(pieces, rank.name)
        undo.callback(_release, rank.name, lambda: self._agent.release_list(prepared))
        return prepared

    def _remove(self, name: str) -> None:
        self._names.discard(name)
        try:
            self._agent.remove_remote(name)
        except NixlError as error:
            # NIXL forgets a dead peer's connection by itself, and then knows nothing to remove.
            logger.debug("%s was not removed: %s", name[:MAX_AGENT_NAME_CHARS], error)


def _release(name: str, give_back: Callable[[], None]) -> None:
    try:
        give_back()
    except NixlError as error:
        logger.warning("a descriptor list of %s was not released: %s", name, error)
