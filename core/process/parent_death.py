"""Ends a process when its parent ends in whatever way. Works on Linux only; elsewhere a process outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: the child must not take the loader's lock


def end_with(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread of the parent that forked it ends, in whatever way."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # the parent died before the line above, so the signal will not come
        os._exit(1)


def die_with_parent() -> Callable[[], None]:
    """A ``preexec_fn`` that makes the child ``end_with`` this process."""
    parent_pid = os.getpid()
    return lambda: end_with(parent_pid)
