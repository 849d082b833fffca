"""``MappedMemory`` of the host: what P keeps in a shared file, D copies as its own memory.

The kernel's way to read the memory of another process (``process_vm_readv``, which UCX uses) looks up every page of
4 KiB in each read.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import SharedMemory
from baton_serve.workers.transfer.mapped.port import HasEnded
from baton_serve.workers.transfer.mapped.shared_file import OtherFile, SharedFile, SharedFileError, bytes_at

logger = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Seconds without a read after which the owner of memory is looked at.
LOOK_AFTER_S = 0.5
#: So many pieces are copied one by one, which takes less time than calls of numpy.
FEW_PIECES = 16


def boot_id() -> str:
    """The id of the kernel's boot; empty where it is hidden, and nothing is mapped then."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class HostMemory:
    """See ``MappedMemory``. Copies are made in the call, without the GIL."""

    memory_type = "DRAM"
    copies_in_call = True

    def __init__(self, cache: SharedFile | None) -> None:
        """``cache``: the file that begins with block 0 of this rank's cache, if it is in one."""
        self._cache = cache
        self._boot_id = boot_id()
        #: By the address that ``map`` has returned.
        self._mapped: dict[int, OtherFile] = {}

    def share(self, address: int) -> SharedMemory | None:
        if self._cache is None or not self._boot_id:
            return None
        return SharedMemory(boot_id=self._boot_id, handle=self._cache.handle)

    def map(self, shared: SharedMemory, num_bytes: int) -> int | None:
        here = self._boot_id and shared.boot_id == self._boot_id and not shared.gpu
        if not here or shared.offset < 0:
            return None
        try:
            file = OtherFile(shared.handle, shared.offset + num_bytes)
        except SharedFileError as error:
            logger.info("memory of another process was not mapped: %s", error)
            return None
        address = file.address + shared.offset
        self._mapped[address] = file
        return address

    def should_unmap(self, address: int, idle_s: float) -> bool:
        return idle_s > LOOK_AFTER_S and self._mapped[address].has_owner_ended()

    def unmap(self, address: int) -> None:
        self._mapped.pop(address).close()

    def copy(self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int) -> HasEnded:
        if len(sources) <= FEW_PIECES:
            _copy_one_by_one(sources, targets, num_bytes)
        else:
            _copy(sources, targets, num_bytes)
        return lambda: True


def _copy_one_by_one(sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int) -> None:
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        ctypes.memmove(target, source, num_bytes)


def _copy(sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int) -> None:
    first = int(sources.min())
    distances = sources - first
    if (distances % num_bytes).any():  # parts of blocks, with other parts between them
        _copy_one_by_one(sources, targets, num_bytes)
        return
    # Targets that are neighbours are written in one call: a thread that gives up the GIL may wait to have it back.
    order = np.argsort(targets)
    numbers, targets = distances[order] // num_bytes, targets[order]
    pieces = bytes_at(first, int(numbers.max()) + 1, num_bytes)
    ends = np.append(np.flatnonzero(np.diff(targets) != num_bytes) + 1, len(targets)).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        into = bytes_at(int(targets[start]), end - start, num_bytes)
        # ``clip`` copies straight into the target; the default would copy twice.
        np.take(pieces, numbers[start:end], axis=0, out=into, mode="clip")
