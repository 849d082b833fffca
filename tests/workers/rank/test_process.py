"""What a rank asks of the system's allocator."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

#: Prints the pages that 20 results of 8 MB cost once the first is free.
PROGRAM = """
import resource, torch
from workers.rank import process
assert process.keep_memory()
torch.ones(2_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_memory_that_is_free_is_not_given_back() -> None:
    shown = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(shown.stdout) < 10_000, "20 times 2,000 pages if the system gets them back"
