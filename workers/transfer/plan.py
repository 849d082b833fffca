"""Which of P's ranks one of D's ranks reads, and what of each.

One rule is meant to cover equal, wider and narrower tensor parallelism: a rank reads the intersection of its own shard
with each of P's. What exists is its simplest case: one rank on each side, holding the same. All else is refused by
name, so that nobody reads half a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from workers.transfer.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.handshake import RankMetadata


class Source(msgspec.Struct, frozen=True):
    """Read whole blocks from this remote rank."""

    remote: RankMetadata


def plan(local: RankMetadata, remotes: Sequence[RankMetadata]) -> list[Source]:
    """What ``local`` reads from an engine of these ranks; raises PlanError."""
    if local.num_ranks != 1:
        raise PlanError(f"this engine has {local.num_ranks} ranks; only one is supported yet")
    if len(remotes) != 1 or remotes[0].num_ranks != 1:
        num_ranks = max([len(remotes), *(remote.num_ranks for remote in remotes)])
        raise PlanError(f"the remote engine has {num_ranks} ranks; only one is supported yet")
    (remote,) = remotes
    _check_metadata(remote)
    if remote.shard != local.shard:
        raise PlanError(f"shards differ: {_words(local)} here, {_words(remote)} there")
    if remote.block_bytes != local.block_bytes:
        raise PlanError(f"a block has {local.block_bytes} bytes here, {remote.block_bytes} there")
    return [Source(remote)]


def _check_metadata(remote: RankMetadata) -> None:
    """A peer's numbers become addresses: refuse what cannot be one."""
    sizes_ok = 0 < remote.num_blocks < 2**31 and remote.block_bytes > 0
    end = remote.cache_address + remote.num_blocks * remote.block_bytes
    if not sizes_ok or not 0 < remote.cache_address <= end < 2**64:
        raise PlanError("the remote cache's address or size is impossible")
    if not 0 < remote.version_address < 2**64 - 8 * remote.num_blocks:
        raise PlanError("the remote version table's address is impossible")
    if remote.cache_memory_type not in {"DRAM", "VRAM"} or remote.cache_device_id < 0:
        raise PlanError("the remote cache is in an unknown kind of memory")


def _words(rank: RankMetadata) -> str:
    shard = rank.shard
    return f"layers {shard.first_layer}-{shard.last_layer}, heads {shard.first_head}-{shard.last_head}"
