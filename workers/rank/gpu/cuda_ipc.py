"""Memory of one process's GPU in another process: the four calls of CUDA's driver that torch has no public name for.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

HANDLE_BYTES = 64
#: ``CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS``, the only flag there is.
_LAZY_PEER_ACCESS = 1


class CudaError(Exception):
    """A call of the driver failed. The message has its name and the driver's number for the reason."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


def allocation_of(address: int) -> tuple[int, int]:
    """Where the allocation begins that has this address, and its bytes. Raises CudaError."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    return base.value, size.value


def handle_of(base: int) -> bytes:
    """The handle with which other processes open an allocation. Raises CudaError, also for memory of a pool."""
    handle = _Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
    return ctypes.string_at(ctypes.addressof(handle), HANDLE_BYTES)


def open_handle(handle: bytes) -> int:
    """The address here of another process's allocation. Raises CudaError, also for an allocation of this process.

    CUDA counts how often an allocation is open.
    """
    address, opened = ctypes.c_uint64(), _Handle.from_buffer_copy(handle)
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(address), opened, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return address.value


def close_handle(address: int) -> None:
    """Give back what ``open_handle`` has returned. Raises CudaError."""
    _call("cuIpcCloseMemHandle", ctypes.c_uint64(address))


def _call(name: str, *arguments: Any) -> None:
    try:
        status = getattr(_driver(), name)(*arguments)
    except (OSError, AttributeError) as error:
        raise CudaError(f"{name}: {error}") from error
    if status:
        raise CudaError(f"{name}: CUDA error {status}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
