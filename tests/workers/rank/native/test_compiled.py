"""Programs are compiled once for each version of theirs, and also where nothing can be kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import baton_serve
from baton_serve.workers.rank.native.support import is_available

pytestmark = pytest.mark.skipif(not is_available(torch.float32), reason="needs Numba")

#: Prints the norm of ones by weights of one.
PROGRAM = """
import torch
from baton_serve.workers.rank.native.rows import rms_norm

ones, out = torch.ones(8), torch.empty(8)
rms_norm(torch.float32)(ones.data_ptr(), ones.data_ptr(), out.data_ptr(), 1, 8, 0.0, 1)
print(out[0].item())
"""

#: How many ones ``ones`` writes.
SIZE = 0


def ones(numbers: Any) -> None:
    for i in range(SIZE):
        numbers[i] = 1.0


def norm(folder: Path, **environment: str) -> float:
    """What a process computes with the packages in ``folder``."""
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(shown.stdout)


def test_each_value_of_a_constant_has_a_program_of_its_own() -> None:
    from baton_serve.workers.rank.native.compiled import compiled

    for _ in range(2):
        for size in (3, 5):
            written = torch.zeros(8)
            compiled(ones, "floats", SIZE=size)(written.data_ptr())
            assert written.sum() == size


def test_each_way_to_multiply_bfloat16_has_programs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two need scratch of other sizes."""
    from baton_serve.workers.rank.native import compiled

    names = set()
    for are_pairs in (False, True):
        monkeypatch.setattr(compiled, "multiplies_pairs", lambda are_pairs=are_pairs: are_pairs)
        names.add(compiled.compiled(ones, "floats", SIZE=1).name)
    assert len(names) == 2


@pytest.mark.slow
def test_a_program_is_compiled_again_when_what_it_calls_has_changed(tmp_path: Path) -> None:
    ours = Path(baton_serve.__file__).parent
    shutil.copytree(ours, tmp_path / "baton_serve", ignore=shutil.ignore_patterns("__pycache__"))
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert norm(tmp_path, **cache) == pytest.approx(1.0)
    kept = {path.name for path in (tmp_path / "cache").rglob("*.nbi")}
    assert len(kept) == 1
    numbers = tmp_path / "baton_serve" / "workers" / "rank" / "native" / "numbers.py"
    source = numbers.read_text()
    plain = "return lambda numbers, index: numbers[index]\n"
    assert plain in source
    numbers.write_text(source.replace(plain, plain.replace("numbers[index]\n", "numbers[index] * np.float32(3)\n")))
    assert norm(tmp_path, **cache) == pytest.approx(3.0)


@pytest.mark.slow
def test_without_a_folder_to_keep_it_a_program_is_compiled_all_the_same() -> None:
    # Numba then asks for no other folder than the one that is not named, as on a file system that is read-only.
    nowhere = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": ""}
    assert norm(Path.cwd(), **nowhere) == pytest.approx(1.0)


@pytest.mark.slow
def test_what_was_kept_and_is_cut_off_is_compiled_again(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert norm(Path.cwd(), **cache) == pytest.approx(1.0)
    kept = list(tmp_path.rglob("*.nbc"))
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:100])
    assert norm(Path.cwd(), **cache) == pytest.approx(1.0)
