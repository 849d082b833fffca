"""The programs of GPUs compile, down to their own code; Triton needs no GPU for this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
#: Shared memory that a program may have on every GPU from compute capability 8.0 on: 99 KiB.
MAX_SHARED_BYTES = 99 << 10


@pytest.mark.slow
def test_programs_compile_and_fit(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kits.rank.compile_programs"],
        cwd=ROOT,
        env=environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 17
    for case in cases:
        assert case["shared_bytes"] <= MAX_SHARED_BYTES, case
        assert case["uses_matrix_units"] == ("bf16'" in case["name"] or "fp16'" in case["name"]), case
