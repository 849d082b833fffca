"""The part of NIXL that is used, as a typed port; ``nixl_agent`` implements it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray


class TransferState(StrEnum):
    """The state of a posted transfer."""

    DONE = "DONE"
    IN_PROGRESS = "PROC"
    FAILED = "ERR"


class Region(msgspec.Struct, frozen=True):
    """Memory to register."""

    address: int
    num_bytes: int
    #: ``DRAM`` or ``VRAM``.
    memory_type: str = "DRAM"
    device_id: int = 0


class PieceRow(msgspec.Struct, frozen=True):
    """``count`` pieces of equal length; piece ``i`` starts at ``address + i * stride``."""

    address: int
    num_bytes: int
    stride: int
    count: int


class Pieces(msgspec.Struct, frozen=True):
    """Rows of pieces, numbered row by row: with equal counts, piece ``i`` of row ``r`` is ``r * count + i``."""

    rows: tuple[PieceRow, ...]
    memory_type: str = "DRAM"
    device_id: int = 0


#: NIXL's opaque handles.
PieceList = Any
TransferHandle = Any


class TransferAgent(Protocol):
    """The part of NIXL that is used. Every method may raise NixlError, and all are called from one thread."""

    @property
    def name(self) -> str:
        """The name under which peers know this agent."""

    def register(self, region: Region) -> None:
        """Let this agent, and peers that get ``metadata`` afterwards, read and write this memory.

        The memory must outlive the agent.
        """

    def metadata(self) -> bytes:
        """What a peer needs for ``add_remote``; with it the peer can read the memory that is registered now."""

    def add_remote(self, metadata: bytes) -> str:
        """Add a peer; returns its name."""

    def remove_remote(self, name: str) -> None:
        """Remove a peer. No transfer from it may be in flight."""

    def prepare(self, pieces: Pieces, owner: str | None = None) -> PieceList:
        """Prepare a list from which reads choose pieces by index; ``owner`` is a peer, or None for local memory."""

    def release_list(self, pieces: PieceList) -> None:
        """Release a list."""

    def post_read(
        self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
    ) -> TransferHandle:
        """Start to read ``remote[remote_ids[i]]`` into ``local[local_ids[i]]``."""

    def state(self, transfer: TransferHandle) -> TransferState:
        """The state of a transfer; also makes progress. FAILED, PeerLostError and BackendFailedError end it."""

    def release(self, transfer: TransferHandle) -> None:
        """Release a transfer that has ended."""

    def notify(self, peer: str, payload: bytes) -> None:
        """Send a notification to a peer."""

    def notifications(self) -> list[bytes]:
        """The notifications since the last call, which any process may have sent; also makes progress."""

    def close(self) -> None:
        """Deregister the memory and end the agent."""
