"""The second table of one rank: a word for each of its blocks, and room for the words of those that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from baton_serve.workers.vllm.fence.words import WORD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: Larger than any allocation: the word of a block that nothing has taken since the engine started, and of a landing.
NEVER = (1 << 64) - 1


class BlockWords:
    """``num_blocks`` words, the number of the allocation that took each block last, then as many landings.

    The word of the block that is read into block ``b`` of this rank lands in place ``b``: the block belongs to one
    request, so its landing does too.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.array: NDArray[np.uint64] = np.full(2 * num_blocks, NEVER, dtype=WORD)
        #: The last allocation that this rank knows; 0: none.
        self.last = 0

    @property
    def address(self) -> int:
        """The address of the word of block 0, which never changes."""
        return int(self.array.ctypes.data)

    @property
    def landings_address(self) -> int:
        """The address of landing 0."""
        return self.address + self.num_blocks * WORD.itemsize

    def apply(self, taken: Mapping[int, int]) -> None:
        """Store which allocations have taken blocks, before anything is written into these. Raises IndexError."""
        for block_id, allocation in taken.items():
            if not 0 <= block_id < self.num_blocks:
                raise IndexError(f"no block {block_id}")
            self.array[block_id] = allocation
        self.last = max(self.last, *taken.values(), 0)

    def empty(self, landings: Sequence[int]) -> None:
        """Let the landings say that no block is kept, until words are read into them."""
        self.array[np.asarray(landings) + self.num_blocks] = NEVER

    def landed(self, landings: Sequence[int]) -> NDArray[np.uint64]:
        """What was read into these landings."""
        words: NDArray[np.uint64] = self.array[np.asarray(landings) + self.num_blocks]
        return words
