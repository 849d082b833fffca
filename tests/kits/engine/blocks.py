"""What a test asks of a block pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_serve.workers.engine.blocks.block_pool import BlockPool


def is_writable(pool: BlockPool, block: int) -> bool:
    """The block has exactly one user, no lease, and no hash by which other sequences could share it."""
    return pool._users[block] == 1 and pool._holds[block] == 0 and pool._block_hashes[block] is None
