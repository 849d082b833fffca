"""A process that owns memory which others map. Not a test."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def owner_of(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Python with these arguments, which says on its first line how to map its memory; killed in the end."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def first_line(owner: subprocess.Popen[str]) -> str:
    assert owner.stdout is not None
    return owner.stdout.readline().strip()
