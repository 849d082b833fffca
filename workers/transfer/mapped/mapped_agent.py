"""``TransferAgent`` that copies from memory it has mapped, and leaves all else to the agent that it wraps."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import SharedMemory
from baton_serve.workers.transfer.mapped.port import ALIGNMENT, HasEnded, MappedMemory
from baton_serve.workers.transfer.nixl.port import (
    PieceList,
    Pieces,
    Region,
    TransferAgent,
    TransferHandle,
    TransferState,
)

logger = logging.getLogger(__name__)


class MappedAgent:
    """Copies pieces from memory that a peer shares into memory of this rank, both of the kind of ``memory``.

    Everything else, the versions of blocks for one, is read by ``inner``, and so is what cannot be mapped: memory of
    another machine, or of another GPU. A peer's memory is mapped by the first read from it, and unmapped
    once its owner may have ended.
    """

    def __init__(self, inner: TransferAgent, memory: MappedMemory) -> None:
        self._inner = inner
        self._memory = memory
        #: Lists whose memory is mapped.
        self._mapped: set[PieceList] = set()

    @property
    def name(self) -> str:
        return self._inner.name

    def register(self, region: Region) -> None:
        self._inner.register(region)

    def share(self, region: Region) -> SharedMemory | None:
        return self._memory.share(region.address) if region.memory_type == self._memory.memory_type else None

    def metadata(self) -> bytes:
        return self._inner.metadata()

    def add_remote(self, metadata: bytes) -> str:
        return self._inner.add_remote(metadata)

    def remove_remote(self, name: str) -> None:
        self._inner.remove_remote(name)

    def prepare(self, pieces: Pieces, owner: str | None = None) -> PieceList:
        prepared = _List(self._inner.prepare(pieces, owner))
        can_copy = pieces.memory_type == self._memory.memory_type and _is_regular(pieces)
        if can_copy and owner is None:
            prepared.set_rows(pieces, 0)
        elif can_copy and pieces.shared is not None:
            prepared.shared = pieces.shared
            prepared.set_rows(pieces, pieces.shared_address)
        return prepared

    def release_list(self, pieces: PieceList) -> None:
        self._unmap(pieces)
        self._inner.release_list(pieces.inner)

    def post_read(
        self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
    ) -> TransferHandle:
        if not self._is_mapped(local, remote):
            return self._inner.post_read(local.inner, local_ids, remote.inner, remote_ids)
        sources, targets = remote.mapped + remote.offsets[remote_ids], local.offsets[local_ids]
        try:
            has_ended = self._memory.copy(sources, targets, remote.piece_bytes)
        except MemoryError as error:
            logger.warning("NIXL reads %d pieces: %s", len(sources), error)
            return self._inner.post_read(local.inner, local_ids, remote.inner, remote_ids)
        remote.num_copies += 1
        return _Copying(has_ended, remote)

    def copies_in_call(self, local: PieceList, remote: PieceList) -> bool:
        return not self._is_mapped(local, remote) or self._memory.copies_in_call

    def state(self, transfer: TransferHandle) -> TransferState:
        if isinstance(transfer, _Copying):
            return TransferState.DONE if transfer.has_ended() else TransferState.IN_PROGRESS
        return self._inner.state(transfer)

    def release(self, transfer: TransferHandle) -> None:
        if isinstance(transfer, _Copying):
            transfer.source.num_copies -= 1
        else:
            self._inner.release(transfer)

    def notify(self, peer: str, payload: bytes) -> None:
        self._inner.notify(peer, payload)

    def notifications(self) -> list[bytes]:
        self._unmap_ended()
        return self._inner.notifications()

    def close(self) -> None:
        self._inner.close()

    def _is_mapped(self, local: PieceList, remote: PieceList) -> bool:
        """Map the memory of ``remote``, unless it is, if pieces can be copied from there to ``local``."""
        if local.offsets is None or remote.offsets is None or local.piece_bytes != remote.piece_bytes:
            return False
        if remote.mapped is None:
            self._map(remote)
        remote.used_s = time.monotonic()
        return remote.mapped is not None

    def _map(self, remote: _List) -> None:
        if remote.shared is None:  # of this rank, or in vain before
            return
        remote.mapped = self._memory.map(remote.shared, remote.num_bytes)
        if remote.mapped is None:
            logger.info("memory of another engine cannot be mapped here: NIXL reads its blocks")
            remote.shared = None
        else:
            self._mapped.add(remote)

    def _unmap(self, remote: _List) -> None:
        if remote.mapped is not None:
            self._memory.unmap(remote.mapped)
            remote.mapped = None
            self._mapped.discard(remote)

    def _unmap_ended(self) -> None:
        now_s = time.monotonic()
        for remote in tuple(self._mapped):
            if not remote.num_copies and self._memory.should_unmap(remote.mapped, now_s - remote.used_s):
                self._unmap(remote)


class _List:
    """A list of the wrapped agent; and if its pieces can be copied, where they are."""

    def __init__(self, inner: PieceList) -> None:
        self.inner = inner
        #: Of each piece: its address, or for a peer's where it is in the memory that the peer shares. ``num_bytes``:
        #: where the last one ends.
        self.offsets: NDArray[np.int64] | None = None
        self.num_bytes = self.piece_bytes = 0
        self.shared: SharedMemory | None = None
        #: The address of the peer's memory here; None: it is not mapped.
        self.mapped: int | None = None
        #: Copies that have not been released, and the time of the last read.
        self.num_copies = 0
        self.used_s = 0.0

    def set_rows(self, pieces: Pieces, start: int) -> None:
        """Note where the pieces are, from the address ``start`` on."""
        rows = [row.address - start + row.stride * np.arange(row.count, dtype=np.int64) for row in pieces.rows]
        self.offsets = np.concatenate(rows)
        self.piece_bytes = pieces.rows[0].num_bytes
        self.num_bytes = int(self.offsets.max()) + self.piece_bytes


class _Copying(NamedTuple):
    """A transfer of ``MappedAgent``, from a list of a peer."""

    has_ended: HasEnded
    source: _List


def _is_regular(pieces: Pieces) -> bool:
    """Whether all pieces have one length and are aligned, as a GPU's program wants."""
    lengths = {row.num_bytes for row in pieces.rows}
    numbers = [number for row in pieces.rows for number in (row.address, row.stride, row.num_bytes)]
    return len(lengths) == 1 and all(number % ALIGNMENT == 0 for number in numbers)
