"""The processes under one, also processes whose own parent has ended. Works on Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on, a process under this one becomes a child of this one when its parent ends."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> None:
    """Kill every process under this one, and wait for their ends. It needs ``adopt_orphans`` before the first start."""
    while children := children_of(os.getpid()):
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process; empty when it has ended."""
    pids: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread has ended
            pids += map(int, file.read_text().split())
    return pids


def descendants_of(pid: int) -> list[int]:
    """All processes under one."""
    return [each for child in children_of(pid) for each in (child, *descendants_of(child))]
