"""How the ranks of an engine divide a model: an even grid of layers x KV heads. Pure.

A *cell* is one head of one layer, its K and V. A block is laid out ``[kv_head, layer, K|V, slot, head_dim]``, so a
rank's cells lie head by head, and within a head layer by layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from baton_serve.core.protocol.handshake import RankMetadata, Shard
from baton_serve.workers.rank_protocol.transfer_errors import TransferError


class MisfitError(TransferError):
    """The shards do not fit together; ``plan`` adds to the message which ranks have them."""


class Run(msgspec.Struct, frozen=True):
    """Bytes of one block that are contiguous on both sides; the offsets count from the start of the block."""

    local_offset: int
    remote_offset: int
    num_bytes: int


class Grid(msgspec.Struct, frozen=True):
    """How an engine divides a model: into ``tp`` ranges of heads x ``pp`` ranges of layers, each part on ``num_copies``
    ranks.
    """

    num_heads: int
    num_layers: int
    tp: int
    pp: int
    num_copies: int
    cell_bytes: int

    def overlapping(self, shard: Shard) -> tuple[range, range]:
        """The columns (ranges of heads) and rows (ranges of layers) of this grid that ``shard`` overlaps."""
        heads, layers = self.num_heads // self.tp, self.num_layers // self.pp
        columns = range(shard.first_head // heads, -(-shard.last_head // heads))
        rows = range(shard.first_layer // layers, -(-shard.last_layer // layers))
        return columns, rows


def grid_of(ranks: Sequence[RankMetadata]) -> Grid:
    """The grid that all ranks of an engine form. Raises MisfitError."""
    copies = Counter(rank.shard for rank in ranks)
    num_heads, tp = _divided("heads", {(shard.first_head, shard.last_head) for shard in copies})
    num_layers, pp = _divided("layers", {(shard.first_layer, shard.last_layer) for shard in copies})
    if len(copies) != tp * pp:
        raise MisfitError("a part of the model is held by no rank")
    if len(set(copies.values())) != 1:
        raise MisfitError("some parts of the model are held by more ranks than others")
    cell_bytes = {cell_bytes_of(rank) for rank in ranks}
    if len(cell_bytes) != 1:
        raise MisfitError("ranks differ in the bytes of one head of one layer")
    return Grid(num_heads, num_layers, tp, pp, len(ranks) // len(copies), cell_bytes.pop())


def grid_around(rank: RankMetadata, num_heads: int, num_layers: int) -> Grid:
    """The grid of the engine of ``rank``, if the model has this size. Raises MisfitError."""
    shard = rank.shard
    heads, layers = shard.last_head - shard.first_head, shard.last_layer - shard.first_layer
    if num_heads % heads or shard.first_head % heads or shard.last_head > num_heads:
        raise MisfitError("heads are not divided evenly")
    if num_layers % layers or shard.first_layer % layers or shard.last_layer > num_layers:
        raise MisfitError("layers are not divided evenly")
    grid = Grid(num_heads, num_layers, num_heads // heads, num_layers // layers, 1, cell_bytes_of(rank))
    if grid.tp * grid.pp != rank.num_ranks:
        raise MisfitError("the models differ in size")
    return grid


def cell_bytes_of(rank: RankMetadata) -> int:
    """Bytes of one head of one layer of one block. Raises MisfitError."""
    shard = rank.shard
    cell_bytes, rest = divmod(
        rank.block_bytes, (shard.last_head - shard.first_head) * (shard.last_layer - shard.first_layer)
    )
    if rest or not cell_bytes:
        raise MisfitError(f"a block of {rank.block_bytes} bytes is not a number of heads and layers")
    return cell_bytes


def runs_between(local: Shard, remote: Shard, cell_bytes: int) -> tuple[Run, ...]:
    """The bytes of a block that both shards hold, in as few runs as possible; empty if they do not overlap."""
    heads = range(max(local.first_head, remote.first_head), min(local.last_head, remote.last_head))
    first, last = max(local.first_layer, remote.first_layer), min(local.last_layer, remote.last_layer)
    if not heads or first >= last:
        return ()
    # Two heads are contiguous only if all layers are read, on both sides.
    layers = {(shard.first_layer, shard.last_layer) for shard in (local, remote)}
    whole_heads = layers == {(first, last)}
    starts, num_heads = ([heads.start], len(heads)) if whole_heads else (heads, 1)
    num_bytes = num_heads * (last - first) * cell_bytes
    return tuple(
        Run(_cell(local, head, first) * cell_bytes, _cell(remote, head, first) * cell_bytes, num_bytes)
        for head in starts
    )


def describe(ranks: Sequence[RankMetadata]) -> str:
    """Ranks of one engine in a few words, for errors; works for impossible shards too."""
    heads = {(rank.shard.first_head, rank.shard.last_head) for rank in ranks}
    layers = {(rank.shard.first_layer, rank.shard.last_layer) for rank in ranks}
    if len(ranks) == 1 and ranks[0].num_ranks != 1:
        size = f"rank {ranks[0].rank} of {ranks[0].num_ranks}"
    else:
        size = f"tp {len(heads)} x pp {len(layers)}"
    return f"{size} (heads {_join_ranges(heads)}, layers {_join_ranges(layers)})"


def _divided(what: str, ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The number of heads or layers that the ranges cover, and the number of ranges.

    Raises MisfitError unless the ranges are equally long and without gaps.
    """
    ordered = sorted(ranges)
    size = ordered[0][1] - ordered[0][0]
    if ordered != [(i * size, (i + 1) * size) for i in range(len(ordered))]:
        raise MisfitError(f"{what} are not divided evenly")
    return ordered[-1][1], len(ordered)


def _cell(shard: Shard, head: int, layer: int) -> int:
    """The index of the cell in a block of the shard."""
    num_layers = shard.last_layer - shard.first_layer
    return (head - shard.first_head) * num_layers + layer - shard.first_layer


def _join_ranges(ranges: Iterable[tuple[int, int]]) -> str:
    """``0-4``, ``0-4 4-8``, or ``0-4 ... 12-16``."""
    ordered = [f"{first}-{last}" for first, last in sorted(ranges)]
    return " ".join(ordered) if len(ordered) <= 2 else f"{ordered[0]} ... {ordered[-1]}"
