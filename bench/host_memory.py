"""The memory of a rank that computes nothing: a NumPy array as its KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.transfer.port import RankMemory
from workers.transfer.versions import VersionTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from core.protocol.handshake import Shard


def host_memory(engine_id: str, cache: NDArray[Any], shard: Shard) -> RankMemory:
    """The memory of a rank whose cache is ``[block, byte]``, with version 0 for every block.

    ``cache`` has to live as long as the result.
    """
    num_blocks, block_bytes = cache.shape
    return RankMemory(
        engine_id=engine_id,
        rank=0,
        num_ranks=1,
        cache_address=cache.ctypes.data,
        cache_memory_type="DRAM",
        cache_device_id=0,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        shard=shard,
        versions=VersionTable(num_blocks),
    )
