"""Plans from which ranks of P one rank of D reads, and what it reads from each. Pure.

One rule covers equal, wider and narrower splits, by heads and by layers: a rank reads the intersection of its own shard
with each shard of P. Both engines have to divide the model evenly. Anything else raises PlanError, so that no rank
reads half a block.

If several ranks of P hold the same shard (copies), the readers are spread over them: the first reader reads the first
copy, the second reader the second copy, and so on, in turn. If there are more copies than readers, some copies are not
read. Those copies are still notified, because P waits for all of its ranks; each is a ``RankSource`` without runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.workers.limits import MAX_AGENT_METADATA_BYTES, MAX_AGENT_NAME_CHARS, MAX_BLOCKS, MAX_PIECES, MAX_RANKS
from baton_serve.workers.rank_protocol.transfer_errors import PlanError
from baton_serve.workers.sharding.shards import Grid, MisfitError, Run, describe, grid_around, grid_of, runs_between


class RankSource(msgspec.Struct, frozen=True):
    """A remote rank: the local rank reads ``runs`` of every block from it, and then notifies it.

    ``num_readers`` ranks of the reading engine notify the remote rank; the local rank is one of them.
    """

    remote: RankMetadata
    runs: tuple[Run, ...]
    num_readers: int


def check_pair(locals: Sequence[RankMetadata], remotes: Sequence[RankMetadata]) -> None:
    """Check that every local rank can read from an engine of these ranks. Raises PlanError, which names both sides."""
    try:
        _check_engine(locals)
        _check_engine(remotes)
        here, there = grid_of(locals), grid_of(remotes)
        if (here.num_heads, here.num_layers) != (there.num_heads, there.num_layers):
            raise MisfitError("the models differ in size")
        _check_grids(here, there)
    except MisfitError as error:
        raise PlanError(f"{error}: {describe(locals)} here, {describe(remotes)} there") from None


def plan(local: RankMetadata, remotes: Sequence[RankMetadata]) -> list[RankSource]:
    """What ``local`` reads from an engine of these ranks, ordered by rank. Raises PlanError, which names both sides."""
    try:
        _check_metadata(local)
        _check_engine(remotes)
        there = grid_of(remotes)
        here = grid_around(local, there.num_heads, there.num_layers)
        _check_grids(here, there)
        return _sources(local, here, remotes, there)
    except MisfitError as error:
        raise PlanError(f"{error}: {describe([local])} here, {describe(remotes)} there") from None


def _sources(local: RankMetadata, here: Grid, remotes: Sequence[RankMetadata], there: Grid) -> list[RankSource]:
    num_seen: dict[object, int] = {}
    sources = []
    for remote in sorted(remotes, key=lambda remote: remote.rank):
        copy = num_seen.get(remote.shard, 0)
        num_seen[remote.shard] = copy + 1
        runs = runs_between(local.shard, remote.shard, here.cell_bytes)
        if not runs:
            continue
        reader, num_readers = _turn(local, here, remote)
        if there.num_copies <= num_readers:
            told_by = range(copy, num_readers, there.num_copies)
        else:
            told_by = range(copy % num_readers, copy % num_readers + 1)
        if reader in told_by:
            sources.append(RankSource(remote, runs if reader % there.num_copies == copy else (), len(told_by)))
    num_runs = sum(len(source.runs) for source in sources)
    if num_runs * max(local.num_blocks, remotes[0].num_blocks) > MAX_PIECES:
        raise MisfitError(f"a read would choose from more than {MAX_PIECES} pieces")
    return sources


def _turn(local: RankMetadata, here: Grid, remote: RankMetadata) -> tuple[int, int]:
    """The index of ``local`` among the local ranks whose shard overlaps that of ``remote``, and their number."""
    columns, rows = here.overlapping(remote.shard)
    own_column, own_row = here.overlapping(local.shard)
    reader = (own_row.start - rows.start) * len(columns) + own_column.start - columns.start
    return reader, len(rows) * len(columns)


def _check_grids(here: Grid, there: Grid) -> None:
    if here.num_copies != 1:
        raise MisfitError("ranks that read may not hold the same shard")
    if here.cell_bytes != there.cell_bytes:
        raise MisfitError(f"one head of one layer has {here.cell_bytes} bytes here, {there.cell_bytes} there")


def _check_engine(ranks: Sequence[RankMetadata]) -> None:
    """Check that these are all ranks of one engine, with possible values. Raises MisfitError or PlanError."""
    if not ranks:
        raise PlanError("an engine without ranks")
    for rank in ranks:
        _check_metadata(rank)
    if sorted(rank.rank for rank in ranks) != list(range(len(ranks))) or {r.num_ranks for r in ranks} != {len(ranks)}:
        raise MisfitError("these are not all ranks of one engine")
    if len({(rank.engine_id, rank.num_blocks) for rank in ranks}) != 1:
        raise MisfitError("the ranks are not of one engine, or not of one number of blocks")


def _check_metadata(rank: RankMetadata) -> None:
    """Check the values of one rank, because a peer's numbers become memory addresses. Raises PlanError."""
    if not 0 <= rank.rank < rank.num_ranks <= MAX_RANKS:
        raise PlanError(f"rank {rank.rank} of {rank.num_ranks} is impossible; an engine has at most {MAX_RANKS}")
    if not 0 < len(rank.agent_name) <= MAX_AGENT_NAME_CHARS or len(rank.agent_metadata) > MAX_AGENT_METADATA_BYTES:
        raise PlanError(f"rank {rank.rank}: the agent's name is empty or too long, or its metadata is too long")
    if rank.num_blocks > MAX_BLOCKS:
        raise PlanError(f"rank {rank.rank} has {rank.num_blocks} blocks; at most {MAX_BLOCKS} can be read")
    sizes_ok = rank.num_blocks > 0 and rank.block_bytes > 0
    end = rank.cache_address + rank.num_blocks * rank.block_bytes
    if not sizes_ok or not 0 < rank.cache_address <= end < 2**64:
        raise PlanError(f"rank {rank.rank}: the cache's address or size is impossible")
    if not 0 < rank.version_address < 2**64 - 8 * rank.num_blocks:
        raise PlanError(f"rank {rank.rank}: the version table's address is impossible")
    if rank.cache_memory_type not in {"DRAM", "VRAM"} or rank.cache_device_id < 0:
        raise PlanError(f"rank {rank.rank}: the cache is in an unknown kind of memory")
    shard = rank.shard
    if not 0 <= shard.first_head < shard.last_head or not 0 <= shard.first_layer < shard.last_layer:
        raise PlanError(f"rank {rank.rank} holds an impossible part of the model: {describe([rank])}")
