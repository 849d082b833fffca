"""The memory that is read, written and copied: anonymous, aligned and with huge pages, as a rank's KV cache is."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from workers.rank.cache.huge_pages import HUGE_PAGE_BYTES, advise_huge_pages, padding_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t)]


def pieces(num_pieces: int, piece_bytes: int) -> NDArray[np.uint8]:
    """Memory ``[piece, byte]`` full of ones, every page of which has been touched."""
    num_bytes = num_pieces * piece_bytes
    buffer = np.empty(num_bytes + HUGE_PAGE_BYTES, np.uint8)
    start = padding_of(buffer.ctypes.data)
    memory = buffer[start : start + num_bytes]
    advise_huge_pages(memory.ctypes.data, num_bytes)
    memory[:] = 1
    return memory.reshape(num_pieces, piece_bytes)


def can_read(process_id: int, address: int) -> bool:
    """Whether the kernel lets this process read the memory of another one, which is how UCX reads on one machine."""
    target = ctypes.create_string_buffer(8)
    local, remote = _IoVec(ctypes.addressof(target), 8), _IoVec(address, 8)
    libc = ctypes.CDLL(None)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return bool(libc.process_vm_readv(process_id, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) == 8)
