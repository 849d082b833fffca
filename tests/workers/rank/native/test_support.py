"""Ranks without native programs: they say so, and serve the same tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from baton_serve.workers.rank import main
from baton_serve.workers.rank.native import support
from tests.kits.rank.driver import Driver, Job, load, prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTHS = [1, 16, 17, 70]


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if Numba were not installed."""
    monkeypatch.setattr(support, "find_spec", lambda name: None if name == "numba" else find_spec(name))
    support.missing.cache_clear()
    yield
    support.missing.cache_clear()


@pytest.fixture
def bad_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if Numba could not be imported."""
    monkeypatch.setitem(sys.modules, "baton_serve.workers.rank.native.rows", None)
    support.missing.cache_clear()
    yield
    support.missing.cache_clear()


def test_a_rank_without_numba_says_why_it_is_slow(no_numba: None) -> None:
    cpu = torch.device("cpu")
    assert not support.is_available(torch.float32)
    assert main.without_programs("float32", cpu) == main.without_programs("bfloat16", cpu) == "Numba is not installed"
    assert main.without_programs("float16", cpu) == "", "there are no programs for it anywhere"
    assert main.without_programs("bfloat16", torch.device("meta")) == ""


def test_a_numba_that_does_not_compile_is_one_that_is_missing(bad_numba: None) -> None:
    assert not support.is_available(torch.float32)
    why = main.without_programs("float32", torch.device("cpu"))
    assert why in ("Numba is not installed", "Numba does not compile (ModuleNotFoundError)")


@pytest.mark.slow
@pytest.mark.skipif(not support.has_tiles(torch.float32), reason="this processor runs these tests without tiles anyway")
def test_all_of_these_tests_pass_without_tiles() -> None:
    quick = "not gpu and not slow and not faults and not vllm"
    command = [sys.executable, "-m", "pytest", "-q", "-m", quick, str(Path(__file__).parent.parent)]
    environ = {**os.environ, support.TILES_VARIABLE: "off"}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.skipif(not support.has_tiles(torch.float32), reason="this processor has no instructions for tiles")
def test_products_that_do_not_compile_are_said_and_done_without(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, jobs = folder_of("llama"), [[Job(prompt(n, 2), 5) for n in LENGTHS] for _ in range(2)]
    expected = Driver(load(folder)).run(jobs[0])

    def fail(dtype: torch.dtype) -> None:
        raise TypeError(dtype)

    monkeypatch.setattr("baton_serve.workers.rank.native.attention.tiled.attend", fail)
    support.tiles_error.cache_clear()
    try:
        why = main.without_programs("float32", torch.device("cpu"))
        assert why == "Numba does not compile programs of tiles (TypeError)"
        assert Driver(load(folder)).run(jobs[1]) == expected
    finally:
        support.tiles_error.cache_clear()


@pytest.mark.usefixtures("tiles")
@pytest.mark.skipif(not support.is_available(torch.float32), reason="needs Numba")
def test_the_tokens_are_the_same_without_numba(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama")
    assert main.without_programs("float32", torch.device("cpu")) == ""
    tokens = []
    for is_there in (True, False):
        if not is_there:
            monkeypatch.setattr(support, "find_spec", lambda name: None)
            support.missing.cache_clear()
        model = load(folder)
        assert (model.kernel is not None) == is_there
        tokens.append(Driver(model).run([Job(prompt(length, 1), 12) for length in LENGTHS]))
    support.missing.cache_clear()
    assert tokens[0] == tokens[1]
