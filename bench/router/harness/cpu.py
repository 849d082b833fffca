"""CPU time and memory of a process with all under it, from ``/proc``."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from baton_serve.core.process.descendants import descendants_of

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Places in ``/proc/PID/stat`` behind the name: utime, stime, cutime and cstime, in ticks; rss, in pages.
_TICKS = slice(11, 15)
_RSS = 21


@dataclass(frozen=True)
class Usage:
    """CPU seconds since the start, those of children that have ended among them, and bytes in memory."""

    cpu_s: float = 0.0
    rss_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu_s + other.cpu_s, self.rss_bytes + other.rss_bytes)


def parse_stat(line: str) -> Usage:
    """What a line of ``/proc/PID/stat`` says. The name in it may have spaces and parentheses."""
    fields = line.rpartition(")")[2].split()
    return Usage(sum(map(int, fields[_TICKS])) / TICKS_PER_S, int(fields[_RSS]) * PAGE_BYTES)


def usage_of(pid: int) -> Usage:
    """The usage of a process and all under it; nothing for those that have ended."""
    total = Usage()
    for each in (pid, *descendants_of(pid)):
        with contextlib.suppress(OSError):
            total += parse_stat(Path(f"/proc/{each}/stat").read_text())
    return total
