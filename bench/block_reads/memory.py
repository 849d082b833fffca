"""The memory that is read, written and copied, as a rank's KV cache is: of the host, aligned and with huge pages; or of
a GPU.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from baton_serve.workers.rank.cache.kv_cache import zeros_in_huge_pages
from bench.block_reads.findings import GPU


class Pieces(Protocol):
    """Memory ``[piece, byte]`` full of ones. ``memory_type`` is that of ``RankMemory``."""

    memory_type: str
    address: int
    num_pieces: int
    piece_bytes: int

    def use_on_this_thread(self) -> None:
        """Prepare a thread to use the memory."""

    def copy(self, chosen: NDArray[Any], target: Self, start: int) -> float:
        """Copy pieces into those of ``target`` from ``start`` on; returns the seconds that the copy alone took."""


def make_pieces(memory: str, num_pieces: int, piece_bytes: int) -> Pieces:
    """Pieces in memory of the host or of the first GPU. Raises torch's errors when the GPU has no room."""
    return GpuPieces(num_pieces, piece_bytes) if memory == GPU else HostPieces(num_pieces, piece_bytes)


class HostPieces:
    """``Pieces`` in this process's memory; a copy is one ``memcpy`` per piece, in one loop in C."""

    memory_type = "DRAM"

    def __init__(self, num_pieces: int, piece_bytes: int) -> None:
        self.num_pieces, self.piece_bytes = num_pieces, piece_bytes
        self._array = pieces(num_pieces, piece_bytes)
        self.address = self._array.ctypes.data

    def use_on_this_thread(self) -> None:
        """Nothing to do."""

    def copy(self, chosen: NDArray[Any], target: HostPieces, start: int) -> float:
        into = target._array[start : start + len(chosen)]
        began_s = time.perf_counter()
        # ``clip`` copies straight into the target; the default would copy twice.
        np.take(self._array, chosen, axis=0, out=into, mode="clip")
        return time.perf_counter() - began_s


class GpuPieces:
    """``Pieces`` in memory of the first GPU; a copy is one kernel for all pieces."""

    memory_type = "VRAM"

    def __init__(self, num_pieces: int, piece_bytes: int) -> None:
        import torch

        self.num_pieces, self.piece_bytes = num_pieces, piece_bytes
        # Eight bytes at a time, since the kernel copies a number with each thread.
        self._tensor = torch.ones((num_pieces, piece_bytes), dtype=torch.uint8, device="cuda:0").view(torch.int64)
        self.address = self._tensor.data_ptr()
        torch.cuda.synchronize()

    def use_on_this_thread(self) -> None:
        """As a rank does."""
        from baton_serve.workers.rank.device import use_on_this_thread

        use_on_this_thread(0)

    def copy(self, chosen: NDArray[Any], target: GpuPieces, start: int) -> float:
        import torch

        index = torch.from_numpy(chosen).to(self._tensor.device)
        into = target._tensor[start : start + len(chosen)]
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        torch.index_select(self._tensor, 0, index, out=into)
        torch.cuda.synchronize()
        return time.perf_counter() - began_s


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t)]


def pieces(num_pieces: int, piece_bytes: int) -> NDArray[np.uint8]:
    """Memory ``[piece, byte]`` full of ones, every page of which has been touched."""
    return zeros_in_huge_pages(num_pieces * piece_bytes).fill_(1).numpy().reshape(num_pieces, piece_bytes)


def can_read(process_id: int, address: int) -> bool:
    """Whether the kernel lets this process read the memory of another one, which is how UCX reads on one machine."""
    target = ctypes.create_string_buffer(8)
    local, remote = _IoVec(ctypes.addressof(target), 8), _IoVec(address, 8)
    libc = ctypes.CDLL(None)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return bool(libc.process_vm_readv(process_id, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) == 8)
