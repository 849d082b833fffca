"""The block ledger: free + cached + pinned + leased = total, counted again from the blocks themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The number of blocks in each state, and the number of leases that hold blocks."""

    total: int
    free: int
    cached: int
    pinned: int
    leased: int
    leases: int

    def __str__(self) -> str:
        return (
            f"{self.total} blocks: {self.free} free + {self.cached} cached + {self.pinned} pinned"
            f" + {self.leased} leased by {self.leases} leases"
        )


def audit(
    stats: PoolStats,
    users: Sequence[int],
    holds: Sequence[int],
    block_hashes: Sequence[bytes | None],
    by_hash: Mapping[bytes, int],
    free: Collection[int],
    cached: Collection[int],
) -> list[str]:
    """The counts that do not add up, in words; empty if all do. O(total)."""
    problems = []
    if stats.free + stats.cached + stats.pinned + stats.leased != stats.total:
        problems.append("the states do not add up to the total")
    if min(users, default=0) < 0 or min(holds, default=0) < 0:
        problems.append("a negative count of users or holds")
    if stats.leased != sum(hold > 0 for hold in holds):
        problems.append("leased is not the number of held blocks")
    if stats.pinned != sum(use > 0 and hold == 0 for use, hold in zip(users, holds, strict=True)):
        problems.append("pinned is not the number of used blocks")
    idle = {block for block in range(stats.total) if users[block] == 0 and holds[block] == 0}
    if len(free) + len(cached) != len(idle) or idle != {*free, *cached}:
        problems.append("free and cached are not the blocks without users and leases")
    if any(block_hashes[block] is not None for block in free) or any(block_hashes[block] is None for block in cached):
        problems.append("a free block with a hash, or a cached one without")
    hashed = {block_hash: block for block, block_hash in enumerate(block_hashes) if block_hash is not None}
    if hashed != dict(by_hash):
        problems.append("the index of block hashes is wrong")
    return problems
