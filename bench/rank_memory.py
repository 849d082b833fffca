"""The memory of a rank that computes nothing."""

from __future__ import annotations

from baton_serve.core.protocol.handshake import RankMetadata, Shard
from baton_serve.workers.transfer.port import RankMemory
from baton_serve.workers.transfer.versions import VersionTable


def rank_memory(
    engine_id: str, address: int, num_blocks: int, block_bytes: int, shard: Shard, memory_type: str = "DRAM"
) -> RankMemory:
    """A rank whose blocks lie side by side from ``address`` on, on the first device, with version 0 for every block.

    What lies there has to live as long as the result. ``memory_type``: see ``RankMemory``.
    """
    versions = VersionTable(num_blocks)
    metadata = RankMetadata(
        engine_id=engine_id,
        rank=0,
        num_ranks=1,
        agent_metadata=b"",
        agent_name="",
        cache_address=address,
        cache_memory_type=memory_type,
        cache_device_id=0,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        shard=shard,
        version_address=versions.address,
    )
    return RankMemory(metadata, versions)
