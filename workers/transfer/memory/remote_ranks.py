"""The remote ranks in the agent: NIXL's name of each, and the prepared lists of what is read from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.workers.limits import MAX_AGENT_NAME_CHARS
from baton_serve.workers.rank_protocol.transfer_errors import NixlError, PlanError
from baton_serve.workers.sharding.plan import RankSource
from baton_serve.workers.transfer.memory.local_memory import LocalMemory, blocks_of
from baton_serve.workers.transfer.memory.version_tables import versions_of
from baton_serve.workers.transfer.nixl.port import PieceList, Pieces, TransferAgent

logger = logging.getLogger(__name__)


class RemoteRank:
    """One rank of a remote engine. The lists are None if the rank is only notified and not read.

    Run ``r`` of block ``i`` is piece ``r * num_blocks + i`` in ``local`` and in ``remote``, where ``num_blocks`` is
    that of the local or the remote rank. ``versions`` are the pieces of ``versions_of``.
    """

    def __init__(self, source: RankSource, name: str) -> None:
        self.name = name
        #: The number of local ranks that notify the remote rank of a read.
        self.num_readers = source.num_readers
        self.num_runs = len(source.runs)
        self.bytes_per_block = sum(run.num_bytes for run in source.runs)
        self.local: PieceList = None
        self.remote: PieceList = None
        self.versions: PieceList = None


class RemoteRanks:
    """Adds remote ranks to the agent."""

    def __init__(self, agent: TransferAgent, local: RankMetadata, memory: LocalMemory) -> None:
        self._agent = agent
        self._local = local
        self._memory = memory
        self._names = {agent.name}

    def add(self, source: RankSource, undo: ExitStack) -> RemoteRank:
        """Add a rank. Raises TransferError. ``undo`` gets callbacks that remove the rank, also if this raises."""
        rank = RemoteRank(source, self._add_agent(source.remote, undo))
        if source.runs:
            here = tuple((run.local_offset, run.num_bytes) for run in source.runs)
            there = [(run.remote_offset, run.num_bytes) for run in source.runs]
            rank.local = self._memory.acquire(here)
            undo.callback(_release, rank.name, lambda: self._memory.release(here))
            rank.remote = self._prepare(rank, blocks_of(source.remote, there), undo)
            rank.versions = self._prepare(rank, versions_of(source.remote), undo)
        return rank

    def _add_agent(self, remote: RankMetadata, undo: ExitStack) -> str:
        ours = self._local
        if (remote.engine_id, remote.rank, remote.agent_name) == (ours.engine_id, ours.rank, self._agent.name):
            return self._agent.name
        if remote.agent_name in self._names:
            # Adding a name twice would replace the agent during its reads, so that their end would be unknown.
            raise PlanError(f"agent {remote.agent_name!r} belongs to another engine or rank")
        name = self._agent.add_remote(remote.agent_metadata)
        shown = name[:MAX_AGENT_NAME_CHARS]
        if name in self._names:
            raise PlanError(f"the metadata is that of agent {shown!r}, which belongs to another engine or rank")
        self._names.add(name)
        undo.callback(self._remove, name)
        if name != remote.agent_name:
            raise PlanError(f"the metadata is that of agent {shown!r}, not of {remote.agent_name!r}")
        return name

    def _prepare(self, rank: RemoteRank, pieces: Pieces, undo: ExitStack) -> PieceList:
        prepared = self._agent.prepare(pieces, rank.name)
        undo.callback(_release, rank.name, lambda: self._agent.release_list(prepared))
        return prepared

    def _remove(self, name: str) -> None:
        self._names.discard(name)
        try:
            self._agent.remove_remote(name)
        except NixlError as error:
            # NIXL removes a dead peer by itself, and then raises an error here.
            logger.debug("%s was not removed: %s", name[:MAX_AGENT_NAME_CHARS], error)


def _release(name: str, give_back: Callable[[], None]) -> None:
    try:
        give_back()
    except NixlError as error:
        logger.warning("a descriptor list of %s was not released: %s", name, error)
