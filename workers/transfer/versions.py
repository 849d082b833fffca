"""The version table: one unsigned 64-bit number per block, read by other engines for the fence."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

#: The type of a version in memory, little-endian on every machine.
VERSION = np.dtype("<u8")


class VersionTable:
    """``num_blocks`` little-endian unsigned 64-bit integers in host memory at a fixed address.

    The scheduler chooses the versions; a rank stores them before it overwrites the blocks. A store is one aligned
    8-byte write per block, so a remote reader sees the old version or the new one, never a mixture.
    """

    def __init__(self, num_blocks: int) -> None:
        self.array: NDArray[np.uint64] = np.zeros(num_blocks, dtype=VERSION)

    @property
    def address(self) -> int:
        """The address of the table, which never changes."""
        return int(self.array.ctypes.data)

    def store(self, fresh: Iterable[tuple[int, int]]) -> None:
        """Store the new versions of blocks: pairs of (block id, version). Raises IndexError for an unknown block."""
        for block_id, version in fresh:
            if block_id < 0:
                raise IndexError(f"no block {block_id}")
            self.array[block_id] = version
