"""What a rank asks of OpenMP."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("environ", "given", "wanted"),
    [
        ({"OMP_THREAD_LIMIT": "1"}, "2", 1),
        ({"OMP_THREAD_LIMIT": "3"}, "2", 2),
        ({"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "2"}, "None", 1),
        ({"OMP_DYNAMIC": "true"}, "2", 2),
    ],
)
def test_no_more_threads_are_asked_for_than_openmp_gives(environ: dict[str, str], given: str, wanted: int) -> None:
    """Torch's products in bfloat16 are not numbers otherwise."""
    program = (
        "import torch\nfrom workers.rank import process\n"
        f"process.limit_threads({given})\n"
        "product = torch.ones(300, 256).bfloat16() @ torch.ones(256, 256).bfloat16()\n"
        "print(torch.get_num_threads(), bool((product == 256).all()))"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")} | environ
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert shown.stdout.split() == [str(wanted), "True"]
