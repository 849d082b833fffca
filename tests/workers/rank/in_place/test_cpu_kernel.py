"""The kernel of CPUs computes what the plain one does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch

from baton_serve.workers.rank.cpu import support
from baton_serve.workers.rank.in_place.choice import kernel_of_cpu
from baton_serve.workers.rank.in_place.cpu_kernel import attend_on_cpu
from baton_serve.workers.rank.in_place.rows import Kernel, PagedRows
from tests.kits.rank.driver import Driver, Job, load, prompt
from tests.kits.rank.kernels import LAYER, NUM_BLOCKS, NUM_LAYERS, PlainKernel, drawn, rows_of
from tests.kits.rank.models import Folders
from tests.kits.repetition import some_now

pytestmark = pytest.mark.skipif(bool(support.missing()), reason="needs Numba")

#: Of float32: sums in another order. Of bfloat16: the outputs' roundings.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.03}
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "window", "lengths", "shape"),
    some_now(
        product(
            [torch.float32, torch.bfloat16],
            [None, 1, 9, 64],
            [([40, 17, 1, 130], 1), ([75], 60), ([600], 300), ([300], 300), ([90, 40], 20)],
            [(2, 2, 16, 16), (3, 1, 20, 32), (1, 7, 24, 10), (2, 4, 80, 16), (2, 1, 128, 16)],
        )
    ),
)
def test_both_kernels_agree(
    dtype: torch.dtype, window: int | None, lengths: tuple[list[int], int], shape: tuple[int, int, int, int]
) -> None:
    """``lengths``: the ends of the rows, and tokens of each. ``shape``: heads of keys, queries to each, and sizes."""
    torch.manual_seed(0)
    (ends, num_tokens), (kv_heads, shared, head_dim, block_size) = lengths, shape
    scale = 1.2 / head_dim**0.5
    rows = rows_of(ends, num_tokens)
    query, blocks, expected = drawn(rows, dtype, kv_heads, shared, head_dim, block_size)
    got = torch.full_like(expected, torch.nan)
    PlainKernel()(query, blocks, rows, scale, window, expected)
    attend_on_cpu(query, blocks, rows, scale, window, got)
    assert float((got.float() - expected.float()).abs().max()) < TOLERANCES[dtype]


@pytest.mark.parametrize("num_tokens", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_threads_compute_what_one_does(dtype: torch.dtype, num_tokens: int) -> None:
    torch.manual_seed(0)
    rows = rows_of([40, 57, 130], num_tokens)
    blocks = torch.randn(NUM_BLOCKS, 2, NUM_LAYERS, 2, 16, 32).to(dtype)[:, :, LAYER]
    query, found = torch.randn(4, 3 * num_tokens, 32).to(dtype), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(torch.empty(3 * num_tokens, 4, 32, dtype=dtype))
        attend_on_cpu(query, blocks, rows, 0.3, None, found[-1])
    assert torch.allclose(*found, atol=TOLERANCES[dtype])


def test_a_row_has_the_same_attention_among_any_others() -> None:
    torch.manual_seed(0)
    rows = rows_of([40, 17, 130], 1)
    blocks = torch.randn(NUM_BLOCKS, 2, NUM_LAYERS, 2, 16, 16)[:, :, LAYER]
    query, together, alone = torch.randn(4, 3, 16), torch.empty(3, 4, 16), torch.empty(1, 4, 16)
    attend_on_cpu(query, blocks, rows, 0.3, None, together)
    one = PagedRows(0, 1, rows.tables[1:2, :2].contiguous(), rows.ends[1:2], 17)
    attend_on_cpu(query[:, 1:2], blocks, one, 0.3, None, alone)
    assert torch.equal(alone[0], together[1])


@pytest.mark.parametrize(("end", "num_tokens"), [(130, 1), (130, 20), (600, 300)])
def test_blocks_before_the_window_are_not_looked_at(end: int, num_tokens: int) -> None:
    window, block_size = 64, 16
    rows = rows_of([end], num_tokens)
    rows.tables[:, : (end - num_tokens - window + 1) // block_size] = 1 << 20  # there are no such blocks
    blocks = torch.randn(NUM_BLOCKS, 2, NUM_LAYERS, 2, block_size, 16)[:, :, LAYER]
    out = torch.empty(num_tokens, 4, 16)
    attend_on_cpu(torch.randn(4, num_tokens, 16), blocks, rows, 0.3, window, out)
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 6])
def test_slots_of_other_tokens_are_not_looked_at(dtype: torch.dtype, window: int | None) -> None:
    # 16 tokens are four times four; from 17 on there are one, two and three tokens more.
    rows = rows_of([16, 17, 18, 19, 1, 3], 1)
    for number, end in enumerate(rows.ends.tolist()):
        blocks = torch.full((NUM_BLOCKS, 2, NUM_LAYERS, 2, 16, 32), torch.nan, dtype=dtype)
        for token in range(max(0, end - window) if window else 0, end):
            block = rows.tables[number, token // 16]
            blocks[block, :, LAYER, :, token % 16] = torch.randn(2, 2, 32).to(dtype)
        out = torch.empty(1, 4, 32, dtype=dtype)
        one = PagedRows(0, 1, rows.tables[number : number + 1], rows.ends[number : number + 1], end)
        attend_on_cpu(torch.randn(4, 1, 32).to(dtype), blocks[:, :, LAYER], one, 0.3, window, out)
        assert out.isfinite().all()


def test_large_scores_do_not_overflow() -> None:
    rows = rows_of([40], 1)
    blocks = torch.randn(NUM_BLOCKS, 1, 1, 2, 16, 16)[:, :, 0]
    out = torch.empty(1, 1, 16)
    attend_on_cpu(torch.full((1, 1, 16), 1e4), blocks, rows, 1.0, None, out)
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("wanted", "device", "dtype", "kernel"),
    [
        ("auto", "cpu", "float32", attend_on_cpu),
        ("auto", "cpu", "bfloat16", attend_on_cpu),
        ("gather", "cpu", "float32", None),
        ("auto", "cpu", "float16", None),
        ("auto", "cuda", "float32", None),
    ],
)
def test_it_is_chosen_where_wanted_and_possible(wanted: str, device: str, dtype: str, kernel: Kernel | None) -> None:
    assert kernel_of_cpu(wanted, torch.device(device), getattr(torch, dtype)) is kernel


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    support.missing.cache_clear()
    yield
    support.missing.cache_clear()


def test_the_tokens_are_the_same_without_numba(folder_of: Folders, request: pytest.FixtureRequest) -> None:
    folder, tokens = folder_of("llama"), []
    for fixture in ("", "no_numba"):
        if fixture:
            request.getfixturevalue(fixture)
        model = load(folder)
        assert (model.kernel is None) == bool(fixture)
        tokens.append(Driver(model).run([Job(prompt(length, 1), 12) for length in (1, 16, 17, 70)]))
    assert tokens[0] == tokens[1]


def test_a_numba_that_does_not_compile_is_one_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "baton_serve.workers.rank.cpu.programs", None)
    support._compiled.cache_clear()
    support.missing.cache_clear()
    assert support.missing() == "Numba does not compile (ModuleNotFoundError)"
    assert kernel_of_cpu("auto", CPU, torch.float32) is None
    support.missing.cache_clear()


#: Prints whether the programs were loaded, and what they compute.
RUN = """
import numpy as np
from numba import types
from baton_serve.workers.rank.cpu.programs import compiled
numbers = np.random.default_rng(0)
softmax = compiled("causal_softmax", types.float32, 0, parallel=False)
scores, sums = numbers.standard_normal((200, 200), np.float32), np.zeros(200, np.float32)
softmax(scores, sums, 0, 200, 1000, np.float32(0.3))
attend = compiled("attend_one_token", types.float32, 64, parallel=False)
query, cache = (numbers.standard_normal(sizes, np.float32) for sizes in ((1, 4, 64), (12 * 64, 64)))
tables, ends, out = np.arange(12, dtype=np.int32)[None], np.array([190], np.int32), np.zeros((1, 4, 64), np.float32)
attend(query, cache, tables, ends, np.array([0, 32]), 64, 16, 1000, out)
print(all(each.stats.cache_hits for each in (softmax, attend)), [each.tobytes().hex() for each in (scores, sums, out)])
"""


def test_whoever_loads_a_program_computes_the_bits_of_whoever_compiled_it(tmp_path: Path) -> None:
    """Workers that share a cache of programs give one answer, logprobs included."""
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    outputs = [subprocess.check_output([sys.executable, "-c", RUN], env=environ, text=True).split() for _ in range(2)]
    assert [loaded for loaded, *_ in outputs] == ["False", "True"]
    assert outputs[0][1:] == outputs[1][1:]


def test_programs_are_compiled_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that is read-only: Numba finds no place for its cache."""
    from numba import types
    from numba.core.caching import CacheImpl

    from baton_serve.workers.rank.cpu.programs import compiled

    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    program = compiled("causal_softmax", types.float32, 0, parallel=False)
    scores, sums = torch.zeros(2, 2), torch.zeros(2)
    program(scores.numpy(), sums.numpy(), 0, 2, 9, 1.0)
    assert (scores.tolist(), sums.tolist()) == ([[1, 0], [1, 1]], [1, 2])
