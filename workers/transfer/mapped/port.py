"""What ``MappedAgent`` needs of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from core.protocol.handshake import SharedMemory

#: Addresses and lengths of pieces that a GPU copies are multiples of it, in bytes: the widest load that GPUs have.
ALIGNMENT = 16


class Copy(Protocol):
    """A copy that was started."""

    def has_ended(self) -> bool:
        """Whether all bytes are where they belong. An error of the GPU is raised: then nothing is known any more."""


class MappedMemory(Protocol):
    """The GPU of this rank, and the memory of other processes on it. Used in the agent's thread only."""

    def share(self, address: int) -> SharedMemory | None:
        """How other processes map the memory at ``address``; None if they cannot."""

    def map(self, shared: SharedMemory, num_bytes: int) -> int | None:
        """The address here of memory that another process shares; None if this GPU cannot map so many bytes of it.

        Each address is given back once, with ``unmap``.
        """

    def unmap(self, address: int) -> None:
        """Give back what ``map`` has returned. No copy from it may be under way."""

    def copy(self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int) -> Copy:
        """Start to copy ``num_bytes`` from each of ``sources`` to the target of the same index; all are addresses."""
