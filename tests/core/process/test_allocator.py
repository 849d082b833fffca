"""What a process asks of the system's allocator."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from baton_serve.core.process.allocator import MAX_PIECE_BYTES

#: Prints the pages that 200 pieces of 200 kB cost, each of which is given back before the next.
PROGRAM = """
import resource, sys
from baton_serve.core.process.allocator import keep_memory

assert keep_memory(int(sys.argv[1]), int(sys.argv[2]))
bytearray(200_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    bytearray(200_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")


def num_pages(*arguments: int) -> int:
    """What the program prints."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_memory_that_is_free_is_not_given_back() -> None:
    assert num_pages(64 << 20, MAX_PIECE_BYTES) < 500, "200 times 49 pages if the system gets them back"


def test_larger_pieces_come_from_the_system_each_time() -> None:
    assert num_pages(64 << 20, 100_000) > 200 * 40
