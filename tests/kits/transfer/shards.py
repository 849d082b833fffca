"""Engines of any split, and which byte of a model lies where. Not a test."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import RankMetadata, Shard

#: Numbers of one byte of one block of the whole model, ``[head, layer, byte of the cell]``.
Model = NDArray[np.int64]

ONE_RANK = RankMetadata(
    engine_id="e",
    rank=0,
    num_ranks=1,
    agent_metadata=b"\x00\xff",
    agent_name="e-0",
    cache_address=4096,
    cache_memory_type="DRAM",
    cache_device_id=0,
    num_blocks=4,
    block_bytes=64,
    version_address=8192,
    shard=Shard(first_layer=0, last_layer=2, first_head=0, last_head=2),
)


def model(num_heads: int, num_layers: int, cell_bytes: int) -> Model:
    return np.arange(num_heads * num_layers * cell_bytes).reshape(num_heads, num_layers, cell_bytes)


def block_of(shard: Shard, whole: Model) -> NDArray[np.int64]:
    """A rank's block: its part of the model, as its bytes lie in memory."""
    return whole[shard.first_head : shard.last_head, shard.first_layer : shard.last_layer].ravel()


def shards(num_heads: int, num_layers: int, tp: int, pp: int) -> list[Shard]:
    """An even division; stages first, as launchers number their ranks."""
    heads, layers = num_heads // tp, num_layers // pp
    return [
        Shard(
            first_layer=stage * layers,
            last_layer=(stage + 1) * layers,
            first_head=column * heads,
            last_head=(column + 1) * heads,
        )
        for stage in range(pp)
        for column in range(tp)
    ]


def engine(parts: list[Shard], cell_bytes: int = 2, engine_id: str = "e", num_blocks: int = 4) -> list[RankMetadata]:
    """Ranks that hold these parts."""
    return [
        msgspec.structs.replace(
            ONE_RANK,
            engine_id=engine_id,
            agent_name=f"{engine_id}-{rank}",
            rank=rank,
            num_ranks=len(parts),
            num_blocks=num_blocks,
            block_bytes=(part.last_head - part.first_head) * (part.last_layer - part.first_layer) * cell_bytes,
            shard=part,
        )
        for rank, part in enumerate(parts)
    ]
