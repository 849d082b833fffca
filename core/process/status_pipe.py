"""Tells a parent process how it goes (``core/protocol/status.py``)."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from core.protocol.status import encode

if TYPE_CHECKING:
    from core.protocol.status import Status


class StatusPipe:
    """Writes status lines to ``fd``; does nothing without one, nor when the parent does not listen any more."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def tell(self, status: Status) -> None:
        """One line."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, encode(status))
