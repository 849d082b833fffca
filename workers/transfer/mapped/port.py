"""What ``MappedAgent`` needs of the memory of one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import SharedMemory

#: Addresses and lengths of pieces are multiples of it, in bytes: the widest load that GPUs have.
ALIGNMENT = 16


#: Of a copy that was started: whether all bytes are where they belong. An error of the GPU is raised: then nothing is
#: known any more.
HasEnded = Callable[[], bool]


class MappedMemory(Protocol):
    """The memory of this rank, and memory of the same kind of other processes. Used in the agent's thread only."""

    #: As in ``RankMemory``.
    memory_type: str
    #: Whether ``copy`` returns when all is copied, or only starts it.
    copies_in_call: bool

    def share(self, address: int) -> SharedMemory | None:
        """How other processes map the memory at ``address``; None if they cannot."""

    def map(self, shared: SharedMemory, num_bytes: int) -> int | None:
        """The address here of memory that another process shares; None if so many bytes of it cannot be mapped.

        Each address is given back once, with ``unmap``.
        """

    def should_unmap(self, address: int, idle_s: float) -> bool:
        """Whether to unmap what ``map`` has returned, from which nothing was read for ``idle_s``.

        Mapped memory outlives the process that has shared it, and one that has died, or begins again, needs its memory.
        """

    def unmap(self, address: int) -> None:
        """Give back what ``map`` has returned. No copy from it may be under way."""

    def copy(self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int) -> HasEnded:
        """Start to copy ``num_bytes`` from each of ``sources`` to the target of the same index; all are addresses.

        Raises MemoryError if there is no room for what the copy needs itself; nothing was begun then.
        """
