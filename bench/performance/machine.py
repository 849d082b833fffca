"""On what is measured: the machine, and the state of the code."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]


def machine() -> str:
    """One line: processor, cores that this process may use, memory, Python."""
    named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = named[1] if named else platform.machine()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{processor}, {cores} cores, {gib:.0f} GiB of memory, Python {platform.python_version()}"


def commit() -> str:
    """The commit of the working tree, with a plus if files differ from it; ``unknown`` outside of a repository."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + "+" * bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def now() -> str:
    """The time, to the minute: ``2026-11-23 20:15 UTC``."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
