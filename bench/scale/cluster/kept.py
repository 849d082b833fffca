"""The blocks that a P keeps under leases."""

from __future__ import annotations

from collections.abc import Callable

from bench.worker_record import BLOCK_SIZE


def blocks_of(num_tokens: int) -> int:
    """Blocks that so many tokens fill, at least in part."""
    return -(-num_tokens // BLOCK_SIZE)


class KeptBlocks:
    """Of one engine, from its start to its death. ``on_free`` is called whenever a lease has ended."""

    def __init__(self, engine_id: str, on_free: Callable[[], None]) -> None:
        self.engine_id = engine_id
        #: Blocks under each lease.
        self.leased: dict[str, int] = {}
        self.num_blocks = 0
        self._on_free = on_free

    def keep(self, lease_id: str, num_tokens: int) -> None:
        """Keep the blocks of a prompt that was just computed."""
        self.leased[lease_id] = num_blocks = blocks_of(num_tokens)
        self.num_blocks += num_blocks

    def free(self, lease_id: str) -> None:
        """End a lease. Does nothing if it has ended."""
        self.num_blocks -= self.leased.pop(lease_id, 0)
        self._on_free()

    def lose(self) -> None:
        """The engine is dead, and its blocks are gone."""
        self.leased.clear()
        self.num_blocks = 0
