"""Which allocation took each of P's blocks last, as P's scheduler counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Allocations:
    """Numbers the allocations of blocks from 1 on.

    A request that finds a block in the prefix cache allocates nothing, and what the block holds stays the same.
    """

    def __init__(self) -> None:
        self._last = 0
        self._news: dict[int, int] = {}

    def took(self, block_ids: Iterable[int]) -> None:
        """One allocation has taken these blocks."""
        self._last += 1
        self._news.update(dict.fromkeys(block_ids, self._last))

    def news(self) -> dict[int, int]:
        """The blocks that were taken since the last call, and by which allocation."""
        told, self._news = self._news, {}
        return told

    def counting(self, get_new_blocks: Callable[[int], list[Any]]) -> Callable[[int], list[Any]]:
        """The pool's own function, and the blocks that it gives are numbered. They have a ``block_id``."""

        def counted(num_blocks: int) -> list[Any]:
            blocks = get_new_blocks(num_blocks)
            self.took(block.block_id for block in blocks)
            return blocks

        return counted
