"""Programs for each token by itself compute the same with any number of threads, and where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from baton_serve.workers.rank.native.support import is_available

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not is_available(torch.float32), reason="needs Numba")

DTYPES = [torch.float32, torch.bfloat16]
TOKENS, HEADS, HEAD_DIM = 301, 6, 48


def normed(dtype: torch.dtype) -> torch.Tensor:
    from baton_serve.workers.rank.native.row_programs import NativeRows

    inputs, weight = torch.randn(TOKENS, 300).to(dtype), torch.randn(300).to(dtype)
    outputs = torch.empty_like(inputs)
    NativeRows().rms_norm(inputs, weight, outputs, 1e-5)
    return outputs


def gated(dtype: torch.dtype) -> torch.Tensor:
    from baton_serve.workers.rank.native.row_programs import NativeRows

    outputs = torch.empty(TOKENS, 300, dtype=dtype)
    NativeRows().gate(torch.randn(TOKENS, 600).to(dtype), outputs)
    return outputs


def rotated(dtype: torch.dtype) -> torch.Tensor:
    from baton_serve.workers.rank.native.row_programs import NativeRows

    product = torch.randn(TOKENS, HEADS * HEAD_DIM).to(dtype)
    cosines, sines = (torch.randn(TOKENS, HEAD_DIM).to(dtype) for _ in range(2))
    NativeRows().rotate(product, cosines, sines, HEADS, HEAD_DIM)
    return product


def stored(dtype: torch.dtype) -> torch.Tensor:
    from baton_serve.workers.rank.native.cache_writes import store

    num_slots = TOKENS * HEADS
    key, value = (torch.randn(HEADS, TOKENS, HEAD_DIM).to(dtype) for _ in range(2))
    layer = torch.zeros(2 * num_slots, HEAD_DIM, dtype=dtype)
    slots = torch.randperm(num_slots)
    store(layer, slots, key, value, num_slots * HEAD_DIM)
    expected = torch.empty_like(layer)
    expected[slots], expected[slots + num_slots] = key.flatten(0, 1), value.flatten(0, 1)
    assert torch.equal(layer, expected)
    return layer


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("program", [normed, gated, rotated, stored])
def test_two_threads_give_what_one_does(program: Callable[[torch.dtype], torch.Tensor], dtype: torch.dtype) -> None:
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        found.append(program(dtype))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_without_threads_of_torch_the_caller_computes_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another OpenMP than GNU's may not have its functions."""
    from numba import config

    from baton_serve.workers.rank.native import compiled, row_programs, rows, team

    def fail(*_: object) -> None:
        raise AssertionError("there are no threads to start")

    torch.manual_seed(1)
    expected = gated(torch.float32)
    # Numba reads its settings with the module, and a program that was kept would not be written anew.
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    for module in (compiled, team):
        monkeypatch.setattr(module, "has_team", lambda: False)
    monkeypatch.setattr(team, "_start", fail)
    monkeypatch.setattr(row_programs, "gate", rows.gate.__wrapped__)
    torch.set_num_threads(2)
    torch.manual_seed(1)
    assert torch.equal(gated(torch.float32), expected)
    assert list(tmp_path.rglob("*.nbc"))
