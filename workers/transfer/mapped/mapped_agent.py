"""``TransferAgent`` that copies within a GPU by itself, and leaves all else to the agent that it wraps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from workers.transfer.mapped.port import ALIGNMENT, Copy, MappedMemory
from workers.transfer.nixl.nixl_port import PieceList, Pieces, Region, TransferAgent, TransferHandle, TransferState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from core.protocol.handshake import SharedMemory

logger = logging.getLogger(__name__)


class _List:
    """A list of the wrapped agent, and the same pieces as addresses of this process, if it can reach them."""

    def __init__(self, inner: PieceList) -> None:
        self.inner = inner
        self.addresses: NDArray[np.int64] | None = None
        self.piece_bytes = 0
        #: What ``MappedMemory.map`` returned, for a list of a peer.
        self.mapped: int | None = None

    def set_rows(self, pieces: Pieces, moved: int) -> None:
        """``moved``: the distance from the addresses of ``pieces`` to those of this process, in bytes."""
        self.addresses = np.concatenate(
            [row.address + moved + row.stride * np.arange(row.count, dtype=np.int64) for row in pieces.rows]
        )
        self.piece_bytes = pieces.rows[0].num_bytes


class MappedAgent:
    """Copies pieces from GPU memory that a peer shares into GPU memory of this rank.

    Both have to be on the GPU of this rank. Everything else, the versions of blocks for one, is read by ``inner``, and
    so is what cannot be mapped: memory of another machine, or of another GPU.
    """

    def __init__(self, inner: TransferAgent, memory: MappedMemory) -> None:
        self._inner = inner
        self._memory = memory

    @property
    def name(self) -> str:
        return self._inner.name

    def register(self, region: Region) -> None:
        self._inner.register(region)

    def share(self, region: Region) -> SharedMemory | None:
        return self._memory.share(region.address) if region.memory_type == "VRAM" else None

    def metadata(self) -> bytes:
        return self._inner.metadata()

    def add_remote(self, metadata: bytes) -> str:
        return self._inner.add_remote(metadata)

    def remove_remote(self, name: str) -> None:
        self._inner.remove_remote(name)

    def prepare(self, pieces: Pieces, owner: str | None = None) -> PieceList:
        prepared = _List(self._inner.prepare(pieces, owner))
        if pieces.memory_type != "VRAM" or not _is_regular(pieces):
            return prepared
        if owner is None:
            prepared.set_rows(pieces, 0)
        elif pieces.shared is not None:
            self._map(prepared, pieces, pieces.shared, owner)
        return prepared

    def release_list(self, pieces: PieceList) -> None:
        if pieces.mapped is not None:
            self._memory.unmap(pieces.mapped)
            pieces.mapped = None
        self._inner.release_list(pieces.inner)

    def post_read(
        self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
    ) -> TransferHandle:
        if self.copies_in_call(local, remote):
            return self._inner.post_read(local.inner, local_ids, remote.inner, remote_ids)
        return _Copying(self._memory.copy(remote.addresses[remote_ids], local.addresses[local_ids], remote.piece_bytes))

    def copies_in_call(self, local: PieceList, remote: PieceList) -> bool:
        return local.addresses is None or remote.addresses is None or local.piece_bytes != remote.piece_bytes

    def state(self, transfer: TransferHandle) -> TransferState:
        if isinstance(transfer, _Copying):
            return TransferState.DONE if transfer.copy.has_ended() else TransferState.IN_PROGRESS
        return self._inner.state(transfer)

    def release(self, transfer: TransferHandle) -> None:
        if not isinstance(transfer, _Copying):
            self._inner.release(transfer)

    def notify(self, peer: str, payload: bytes) -> None:
        self._inner.notify(peer, payload)

    def notifications(self) -> list[bytes]:
        return self._inner.notifications()

    def close(self) -> None:
        self._inner.close()

    def _map(self, prepared: _List, pieces: Pieces, shared: SharedMemory, owner: str) -> None:
        end = max(row.address + row.stride * (row.count - 1) + row.num_bytes for row in pieces.rows)
        mapped = self._memory.map(shared, end - pieces.shared_address)
        if mapped is None:
            logger.info("the GPU memory of %s cannot be mapped here: NIXL reads its blocks", owner)
            return
        prepared.mapped = mapped
        prepared.set_rows(pieces, mapped - pieces.shared_address)


class _Copying:
    """A transfer of ``MappedAgent``."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy


def _is_regular(pieces: Pieces) -> bool:
    """Whether all pieces have one length and are aligned, as the copying program wants."""
    lengths = {row.num_bytes for row in pieces.rows}
    numbers = [number for row in pieces.rows for number in (row.address, row.stride, row.num_bytes)]
    return len(lengths) == 1 and all(number % ALIGNMENT == 0 for number in numbers)
