"""The fence: finds the blocks that P has overwritten while or before D read them.

P gives a block a larger version than all before it, and stores it, before it overwrites the block. D reads the versions
after the data. If a version is not larger than the promise of the hand-off, the block was not overwritten before the
versions were read, and thus not while the data was read. This is a sequence lock. Versions are little-endian unsigned
64-bit numbers.

A version far below the promise is that of another engine in P's place. Each engine begins at a random version.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: More allocations of blocks than an engine makes: 3,000 a second for ten years are fewer.
MAX_ALLOCATIONS = 2**40


def stale_positions(promise: int, found: NDArray[np.uint64]) -> list[int]:
    """The positions of the versions that are above the promise, or at least ``MAX_ALLOCATIONS`` below it."""
    return [int(i) for i in np.flatnonzero((found > promise) | (found <= promise - MAX_ALLOCATIONS))]
