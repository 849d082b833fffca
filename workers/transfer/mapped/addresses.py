"""Memory at an address as an array of numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def bytes_at(address: int, *shape: int) -> NDArray[np.uint8]:
    """Memory of this process, which has to live as long as the array."""
    return np.asarray(_Memory(address, shape))


class _Memory:
    """As numpy wants to be told. A type of ctypes would be made anew for each size."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}
