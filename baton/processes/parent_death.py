"""Children that cannot outlive us, however we end."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: the child must not take the loader's lock


def die_with_parent() -> Callable[[], None]:
    """A ``preexec_fn``: the kernel kills the child when the thread that forked it ends, SIGKILL included."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return before_exec
