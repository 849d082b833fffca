"""The fence: is what was read what was promised?

P changes a block's version before it overwrites the block, and D reads the versions after the data. Equal versions
therefore mean that nothing was overwritten before the second read, hence nothing during the first: a sequence lock.
Versions are little-endian unsigned 64-bit numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The type of a version as it lies in memory, whatever this machine's own byte order is.
VERSION = np.dtype("<u8")


def expected_versions(versions: list[int]) -> NDArray[np.uint64]:
    """The promised versions as an array. Raises OverflowError for a number that is none."""
    return np.array(versions, dtype=VERSION)


def stale_positions(expected: NDArray[np.uint64], found: NDArray[np.uint64]) -> list[int]:
    """Which of the blocks were overwritten, as positions in the two equally long arrays."""
    return [int(i) for i in np.flatnonzero(expected != found)]
