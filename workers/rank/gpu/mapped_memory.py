"""``MappedMemory`` of a GPU: CUDA IPC maps what other processes share, and one program copies all pieces of a read.

Importing this needs the package ``triton``.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import SharedMemory
from baton_serve.workers.rank.gpu import cuda_ipc
from baton_serve.workers.rank.gpu.launches import copy_pieces
from baton_serve.workers.transfer.mapped.host_memory import boot_id
from baton_serve.workers.transfer.mapped.port import ALIGNMENT, HasEnded

logger = logging.getLogger(__name__)

#: Seconds after the last read in which memory of another process stays mapped. To map it again is one call.
UNMAP_AFTER_S = 3.0


class GpuMemory:
    """See ``MappedMemory``. The constructor compiles the program, which takes a second the first time, and sets the
    current CUDA stream of its thread.

    Copies have a stream of their own with a high priority: they need few of the GPU's units for a short time, and
    need not wait for a step of the model.
    """

    memory_type = "VRAM"
    copies_in_call = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._boot_id = boot_id()
        self._gpu = str(torch.cuda.get_device_properties(device).uuid)
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(self._stream)
        self._try()

    def share(self, address: int) -> SharedMemory | None:
        if not self._boot_id:
            return None
        try:
            base, _ = cuda_ipc.allocation_of(address)
            handle = cuda_ipc.handle_of(base)
        except cuda_ipc.CudaError as error:
            # Torch's expandable segments are of a kind that has no such handles, for example.
            logger.info("the GPU memory of the cache cannot be shared: %s", error)
            return None
        return SharedMemory(boot_id=self._boot_id, gpu=self._gpu, handle=handle, offset=address - base)

    def map(self, shared: SharedMemory, num_bytes: int) -> int | None:
        here = shared.boot_id == self._boot_id and shared.gpu == self._gpu
        if not self._boot_id or not here or len(shared.handle) != cuda_ipc.HANDLE_BYTES:
            return None
        try:
            return self._open(shared, num_bytes)
        except cuda_ipc.CudaError as error:
            logger.info("GPU memory of another process was not mapped: %s", error)
            return None

    def should_unmap(self, address: int, idle_s: float) -> bool:
        """See ``MappedMemory``. A process in another container may own it, whose end this one could not see."""
        return idle_s > UNMAP_AFTER_S

    def unmap(self, address: int) -> None:
        try:
            base, _ = cuda_ipc.allocation_of(address)
            cuda_ipc.close_handle(base)
        except cuda_ipc.CudaError as error:
            logger.warning("GPU memory of another process stays mapped: %s", error)

    def copy(self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int) -> HasEnded:
        try:
            read = copy_pieces(sources, targets, num_bytes, self._device)
        except torch.OutOfMemoryError as error:  # for the addresses, before the program is started
            raise MemoryError(str(error)) from error
        return partial(_has_ended, self._stream.record_event(), read)

    def _open(self, shared: SharedMemory, num_bytes: int) -> int | None:
        base = cuda_ipc.open_handle(shared.handle)
        try:
            _, size = cuda_ipc.allocation_of(base)
            # What a peer says of its memory is not believed: an access outside, or one that is not aligned, would cost
            # this rank its GPU.
            if 0 <= shared.offset <= size - num_bytes and shared.offset % ALIGNMENT == 0:
                return base + shared.offset
        except cuda_ipc.CudaError:
            cuda_ipc.close_handle(base)
            raise
        cuda_ipc.close_handle(base)
        return None

    def _try(self) -> None:
        """Copy two pieces. Raises RuntimeError if the program does not copy, and what Triton raises."""
        numbers = torch.arange(16, device=self._device).view(4, 4)
        torch.cuda.synchronize(self._device)
        sources, targets = (np.array([numbers[row].data_ptr() for row in rows]) for rows in ((0, 1), (3, 2)))
        self.copy(sources, targets, numbers[0].nbytes)
        torch.cuda.synchronize(self._device)
        if numbers.flatten().tolist() != [*range(8), *range(4, 8), *range(4)]:
            raise RuntimeError("the program that copies pieces does not copy them")


def _has_ended(event: torch.cuda.Event, _read: torch.Tensor) -> bool:
    """Whether a copy has ended; what its program reads lives until then."""
    return bool(event.query())  # type: ignore[no-untyped-call]
