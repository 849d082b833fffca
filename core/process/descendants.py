"""All processes under this one, those among them whose own parent has ended. Works on Linux only."""

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
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    pids: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread has ended
            pids += map(int, file.read_text().split())
    return pids
