"""Memory of the host that other processes of this machine can map: a file without a name in any folder (Linux).

Whoever knows its process, descriptor and name can map it, if the kernel shows him the descriptors of that process: to
the same user, or root, in the same PID namespace. It never becomes smaller (sealed), so no reader meets an end that has
moved.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import secrets
import select
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: The size of a huge page on x86-64, and of the alignment that makes the most of them elsewhere.
HUGE_PAGE_BYTES = 2 << 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LINK = "/memfd:{} (deleted)"
_HANDLE = re.compile(rb"([1-9][0-9]{0,9}) ([0-9]{1,9}) (baton-[0-9a-f]{32})")
#: From <linux/mman.h>; Python has no names for them.
_MAP_FIXED, _MAP_NORESERVE, _MADV_POPULATE_READ, _MADV_COLLAPSE = 0x10, 0x4000, 22, 25
#: What keeps the kernel from making a huge page now, and may not the next time (madvise(2)).
_PASSING, _COLLAPSE_TRIES = frozenset({errno.EAGAIN, errno.EBUSY}), 3
_MAP_FAILED = ctypes.c_void_p(-1).value


class SharedFileError(Exception):
    """The file of a handle is not there, is not open to this process, or is not what its handle says."""


class SharedFile:
    """A file of zeros in huge pages, mapped at ``address`` in this process as long as it lives."""

    def __init__(self, num_bytes: int) -> None:
        """Raises MemoryError for more than the machine has, and OSError if there are no huge pages for it, as before
        Linux 6.1. With small pages all that this process does with the memory would take longer, up to a fifth in
        attention.
        """
        if num_bytes > os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:
            raise MemoryError(f"{num_bytes} bytes are more than this machine has")
        num_bytes = _rounded_up(num_bytes, HUGE_PAGE_BYTES)
        #: Random, so that nobody takes another file for this one.
        self.name = f"baton-{secrets.token_hex(16)}"
        with ExitStack() as undo:
            self._descriptor = os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            undo.callback(os.close, self._descriptor)
            os.ftruncate(self._descriptor, num_bytes)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
            mapping = Mapping(self._descriptor, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
            undo.callback(mapping.close)
            mapping.use_huge_pages()
            self._undo = undo.pop_all()
        self.address = mapping.address

    @property
    def handle(self) -> bytes:
        """What another process needs for ``OtherFile``."""
        return b"%d %d %b" % (os.getpid(), self._descriptor, self.name.encode())

    def close(self) -> None:
        """Unmap it, and give its memory back when nobody has it mapped any more."""
        self._undo.close()


class OtherFile:
    """The begin of a file of another process, mapped at ``address`` to be read."""

    def __init__(self, handle: bytes, num_bytes: int) -> None:
        """Raises SharedFileError, also if the file does not have so many bytes, or no memory for them."""
        match = _HANDLE.fullmatch(handle)
        if match is None:
            raise SharedFileError("no handle of a shared file")
        process, number, name = (part.decode() for part in match.groups())
        with ExitStack() as undo:
            try:
                # First, so that it is the process that has the file, and not one that gets its number later.
                owner = os.pidfd_open(int(process))
                undo.callback(os.close, owner)
                self._mapping = _map(Path("/proc", process, "fd", number), name, num_bytes)
            except (OSError, OverflowError) as error:
                raise SharedFileError(str(error)) from error
            undo.callback(self._mapping.close)
            self._undo = undo.pop_all()
        self.address = self._mapping.address
        self._ends = select.poll()
        self._ends.register(owner, select.POLLIN)

    def has_owner_ended(self) -> bool:
        return bool(self._ends.poll(0))

    def close(self) -> None:
        self._undo.close()


class Mapping:
    """A mapped file that begins a huge page, which Python's mmap does not promise."""

    def __init__(self, descriptor: int, num_bytes: int, protection: int) -> None:
        """Raises OSError."""
        self._libc = _libc()
        self._reserved_bytes = num_bytes + HUGE_PAGE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._reserved = self._map(None, self._reserved_bytes, 0, flags, -1)
        self.address = _rounded_up(self._reserved, HUGE_PAGE_BYTES)
        self.num_bytes = num_bytes
        try:
            self._map(self.address, num_bytes, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
        except OSError:
            self.close()
            raise

    def use_huge_pages(self) -> None:
        """Give it huge pages, of zeros. Raises OSError if the kernel does not."""
        for start in range(0, self.num_bytes, HUGE_PAGE_BYTES):
            ctypes.memset(self.address + start, 0, 1)  # a page that nothing has touched does not grow
        for tries_left in reversed(range(_COLLAPSE_TRIES)):
            try:
                self._advise(_MADV_COLLAPSE)
            except OSError as error:
                if error.errno not in _PASSING or not tries_left:
                    raise
            else:
                return

    def look_up(self) -> None:
        """Look up all pages now, in about a millisecond for each gigabyte of huge ones. The first access to a small one
        costs as much as its copy. Raises OSError, on kernels before 5.14.
        """
        self._advise(_MADV_POPULATE_READ)

    def close(self) -> None:
        self._libc.munmap(ctypes.c_void_p(self._reserved), ctypes.c_size_t(self._reserved_bytes))

    def _advise(self, advice: int) -> None:
        if self._libc.madvise(ctypes.c_void_p(self.address), ctypes.c_size_t(self.num_bytes), advice):
            raise _os_error()

    def _map(self, address: int | None, num_bytes: int, protection: int, flags: int, descriptor: int) -> int:
        found = self._libc.mmap(
            ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), protection, flags, descriptor, ctypes.c_long(0)
        )
        if found == _MAP_FAILED:
            raise _os_error()
        return int(found)


def _map(there: Path, name: str, num_bytes: int) -> Mapping:
    # Looked at before it is opened, since to open something else, a device for one, may have effects.
    _check_name(there, name)
    descriptor = os.open(there, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_name(Path("/proc/self/fd", str(descriptor)), name)
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise SharedFileError("the file may become smaller while it is read")
        file = os.fstat(descriptor)
        # Not believed of a peer: an access outside would end this process, and one to a hole takes memory.
        in_memory = file.st_blocks * 512
        if not 0 < num_bytes <= min(file.st_size, in_memory):
            raise SharedFileError(f"it has {file.st_size} bytes, {in_memory} of them in memory, and not {num_bytes}")
        mapping = Mapping(descriptor, _rounded_up(num_bytes, mmap.PAGESIZE), mmap.PROT_READ)
    finally:
        os.close(descriptor)
    try:
        mapping.look_up()
    except OSError:
        mapping.close()
        raise
    return mapping


def _check_name(link: Path, name: str) -> None:
    if str(link.readlink()) != _LINK.format(name):
        raise SharedFileError(f"{link} is another file")


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    return libc


def _os_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def bytes_at(address: int, *shape: int) -> NDArray[np.uint8]:
    """Memory of this process, which has to live as long as the array."""
    return np.asarray(_Memory(address, shape))


class _Memory:
    """As numpy wants to be told. A type of ctypes would be made anew for each size."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}
