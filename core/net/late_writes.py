"""Puts off what one turn of an event loop has to write, while there is much of it.

A write may have to wake the process that reads, and a process that reads many small pieces one by one does more work
than one that reads them together. So in a burst the loop first looks what else has come, and then writes everything in
one go. While there is little to do, nothing is put off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

logger = logging.getLogger("baton.net")

#: So many writes without a new reading of the clock are a burst. uvloop's clock counts whole milliseconds; a clock that
#: is finer never shows a burst, and nothing is put off.
BURST: Final = 4


class Loop(Protocol):
    """The part of an event loop that is needed here."""

    def time(self) -> float:
        """The present time in seconds."""

    def call_soon(self, callback: Callable[[], object], /) -> Any:
        """Call ``callback`` in the next turn."""


class Writer:
    """Something that has bytes to write. Not a ``Protocol``: mypyc calls the method of a class directly."""

    __slots__ = ()

    def write_now(self) -> None:
        """Write what ``LateWrites.add`` was called for, unless it was written or dropped."""
        raise NotImplementedError


class LateWrites:
    """Calls the writers that it is given: at once, or in a burst all those of a turn at its end, in their order."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._writers: list[Writer] = []
        self._is_burst = False
        self._now_s = 0.0
        #: Writes since the clock showed ``_now_s``.
        self._num = 0

    def add(self, writer: Writer) -> None:
        """Call ``writer.write_now``, now or later. Its connection may be lost in between."""
        if self._is_burst:
            if not self._writers:
                self._loop.call_soon(self._write)
            self._writers.append(writer)
            return
        now_s = self._loop.time()
        if now_s != self._now_s:
            self._now_s = now_s
            self._num = 0
        self._num += 1
        self._is_burst = self._num >= BURST
        writer.write_now()

    def _write(self) -> None:
        """Call the writers of a turn. A writer that is alone ends the burst, however long ago the burst was."""
        writers, self._writers = self._writers, []
        self._is_burst = len(writers) > 1
        self._num = 0
        for writer in writers:
            try:
                writer.write_now()
            except Exception:  # the others' must still be written
                logger.exception("a write met a bug")


def write(writer: Writer, late_writes: LateWrites | None) -> None:
    """Call ``writer.write_now``: at once without ``late_writes``, else when they do."""
    if late_writes is None:
        writer.write_now()
    else:
        late_writes.add(writer)
