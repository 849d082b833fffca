"""What a rank asks of the system's allocator, and of OpenMP."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

#: Prints the pages that 20 results of 8 MB cost once the first is free.
PROGRAM = """
import resource, torch
from baton_serve.core.process.allocator import MAX_PIECE_BYTES, keep_memory
from baton_serve.workers.rank.main import KEPT_BYTES
assert keep_memory(KEPT_BYTES, MAX_PIECE_BYTES)
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


@pytest.mark.parametrize(
    ("environ", "given", "wanted"),
    [
        ({"OMP_THREAD_LIMIT": "1"}, "2", 1),
        pytest.param({"OMP_THREAD_LIMIT": "3"}, "2", 2, marks=pytest.mark.slow),
        pytest.param({"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "2"}, "None", 1, marks=pytest.mark.slow),
        pytest.param({"OMP_DYNAMIC": "true"}, "2", 2, marks=pytest.mark.slow),
    ],
)
def test_no_more_threads_are_asked_for_than_openmp_gives(environ: dict[str, str], given: str, wanted: int) -> None:
    """Torch's products in bfloat16 are not numbers otherwise."""
    program = (
        "import torch\nfrom baton_serve.workers.rank import process\n"
        f"process.limit_threads({given})\n"
        "product = torch.ones(300, 256).bfloat16() @ torch.ones(256, 256).bfloat16()\n"
        "print(torch.get_num_threads(), bool((product == 256).all()))"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")} | environ
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert shown.stdout.split() == [str(wanted), "True"]
