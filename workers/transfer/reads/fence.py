"""The fence: finds the blocks that P has overwritten while or before D read them.

P changes a block's version before it overwrites the block, and D reads the versions after the data. If the versions
equal those of the hand-off, no block was overwritten before the versions were read, and thus not while the data was
read. This is a sequence lock. Versions are little-endian unsigned 64-bit numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from baton_serve.workers.transfer.versions import VERSION

if TYPE_CHECKING:
    from numpy.typing import NDArray


def expected_versions(versions: list[int]) -> NDArray[np.uint64]:
    """The versions of a hand-off as an array. Raises OverflowError for a number that is not unsigned 64-bit."""
    return np.array(versions, dtype=VERSION)


def stale_positions(expected: NDArray[np.uint64], found: NDArray[np.uint64]) -> list[int]:
    """The positions at which the two equally long arrays differ: these blocks were overwritten."""
    if expected.tobytes() == found.tobytes():  # nearly always, and far quicker for the few blocks of a short prompt
        return []
    return [int(i) for i in np.flatnonzero(expected != found)]
