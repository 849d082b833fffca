"""The pipe on which a process reports its progress to its parent (``core/protocol/status.py``)."""

from __future__ import annotations

import contextlib
import os
import sys

from baton_serve.core.protocol.status import Failed, Status, encode


class StatusPipe:
    """Writes status lines to ``fd``. Does nothing without an ``fd``, nor when the parent has closed its end."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def tell(self, status: Status) -> None:
        """Write one line. Never raises."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, encode(status))

    def give_up(self, who: str, why: str) -> int:
        """Tell the parent, and people on stderr, why this process cannot continue. Returns its exit code, 1."""
        self.tell(Failed(error=why))
        print(f"{who}: {why}", file=sys.stderr)
        return 1
