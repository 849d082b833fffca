"""Products by native programs: those of float64, and the same for a token among any others and with any threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baton_serve.workers.rank.native import support
from baton_serve.workers.rank.native.support import has_tiles, is_available

if not is_available(torch.float32):
    pytest.skip("needs Numba", allow_module_level=True)

from baton_serve.workers.rank.native import wide_products
from baton_serve.workers.rank.native.products import CHUNK_WORDS, LEAST_FOR_TWO, ROWS
from baton_serve.workers.rank.native.tiles import WIDTH
from baton_serve.workers.rank.native.weights import NativeWeight, laid_out, takes
from baton_serve.workers.rank.native.wide_products import BLOCKS, FEW_ROWS

DTYPES = (torch.float32, torch.bfloat16)
#: Roundings of a type, of which a result has one more than its float32 sum.
EPS = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
#: More inputs than are computed at once, for both types, and no multiple of a vector's.
LONG = 2 * CHUNK_WORDS + 100
#: The most rows that are computed before weights are read again.
MOST_ROWS = max(ROWS, wide_products.ROWS)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not takes(request.param, 2):
        pytest.skip("this processor has no instructions for the type")
    found: torch.dtype = request.param
    return found


def layer(dtype: torch.dtype, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)


def assert_right(found: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    exact = given.double() @ weight.double().T + (0 if bias is None else bias.double())
    # What the terms of a sum may add to its error.
    terms = given.double().abs() @ weight.double().abs().T
    error = (found.double() - exact).abs()
    assert bool((error <= EPS[given.dtype] * exact.abs() + 1e-6 * terms + 1e-6).all())


@pytest.mark.parametrize("outputs", [1, 24, 64, 65, 200, WIDTH * BLOCKS + 70])
@pytest.mark.parametrize("inputs", [2, 40, 256, LONG])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_float64(dtype: torch.dtype, outputs: int, inputs: int, has_bias: bool) -> None:
    weight, bias = layer(dtype, outputs, inputs)
    native = NativeWeight(weight, bias if has_bias else None)
    for rows in (1, 2, 3, 4, 5, 11, FEW_ROWS + 1):
        given = torch.randn(rows, inputs).to(dtype)
        found = native.times(given)
        assert found.dtype == dtype and found.shape == (rows, outputs)
        assert_right(found, given, weight, bias if has_bias else None)


def test_a_token_has_the_same_product_among_any_others(dtype: torch.dtype) -> None:
    for inputs in (64, LONG):
        native = NativeWeight(*layer(dtype, WIDTH * BLOCKS + 70, inputs))
        given = torch.randn(MOST_ROWS + 7, inputs).to(dtype)
        together = native.times(given)
        for rows in (1, 2, 3, 4, 6, 9, FEW_ROWS, FEW_ROWS + 1, 65, MOST_ROWS, MOST_ROWS + 1):
            assert torch.equal(native.times(given[:rows]), together[:rows])
            assert torch.equal(native.times(given[-rows:]), together[-rows:])


@pytest.mark.parametrize(("outputs", "inputs"), [(300, 512), (130, LONG), (64, LONG)])
def test_two_threads_give_what_one_does(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    native = NativeWeight(*layer(dtype, outputs, inputs))
    for rows in (1, 9, 300):
        given = torch.randn(rows, inputs).to(dtype)
        assert rows < 9 or rows * outputs * inputs >= LEAST_FOR_TWO, "so large that both compute"
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(native.times(given))
        assert torch.equal(*found)


def test_inputs_of_any_shape(dtype: torch.dtype) -> None:
    weight, bias = layer(dtype, 70, 32)
    native = NativeWeight(weight, bias)
    given = torch.randn(2, 32, 5).to(dtype).transpose(1, 2)
    assert torch.equal(native.times(given), native.times(given.reshape(10, 32)).view(2, 5, 70))
    assert native.times(torch.empty(1, 0, 32, dtype=dtype)).shape == (1, 0, 70)


def test_what_is_laid_out_is_the_weight(dtype: torch.dtype) -> None:
    """Each output's weights are one column, or two of them side by side, of its block; the rest is zeros."""
    weight = torch.arange(1.0, 70 * 4 + 1).view(70, 4).to(dtype)
    blocks = laid_out(weight)
    columns = blocks.permute(0, 2, 1, 3).reshape(-1, 4)
    assert torch.equal(columns[:70], weight) and not columns[70:].any()
    assert len(columns) == 2 * WIDTH


def test_weights_that_are_no_rows_side_by_side(dtype: torch.dtype) -> None:
    weight = torch.randn(40, 24).to(dtype).t()
    given = torch.randn(3, 40).to(dtype)
    assert torch.equal(NativeWeight(weight, None).times(given), NativeWeight(weight.contiguous(), None).times(given))


@pytest.mark.parametrize("given", [(3, 31), (3, 33)])
def test_inputs_of_another_size_are_refused(dtype: torch.dtype, given: tuple[int, int]) -> None:
    native = NativeWeight(*layer(dtype, 10, 32))
    with pytest.raises(ValueError, match="inputs"):
        native.times(torch.randn(given).to(dtype))
    with pytest.raises(ValueError, match="inputs"):
        native.times(torch.randn(3, 32, dtype=torch.float64))


#: Prints how far products and attention with what is in the environment are from those with one thread.
WITH_FEWER = """
import torch
from baton_serve.workers.rank.native.attention.causal import attend_causally
from baton_serve.workers.rank.native.weights import NativeWeight

torch.set_num_threads(2)
native, given = NativeWeight(torch.randn(300, 512), None), torch.randn(70, 512)
query, key, value = (torch.randn(2, 70, 32) for _ in range(3))
found = []
for threads in (2, 1):
    torch.set_num_threads(threads)
    out = torch.full((70, 2, 32), float("nan"))
    attend_causally(query, key, value, 0.2, None, out)
    found.append(torch.cat([native.times(given).flatten(), out.flatten()]))
print(torch.equal(*found))
"""


#: Prints whether products and attention in bfloat16 are right, and the same for a token wherever it is computed, if two
#: are multiplied at a time (or are not), whatever this processor is better at.
EITHER_WAY = """
import sys

import torch

from baton_serve.workers.rank.native import processor

processor.multiplies_pairs = lambda: sys.argv[1] == "pairs"

from baton_serve.workers.rank.native.attention.causal import attend_in_blocks
from baton_serve.workers.rank.native.attention.decode import attend_one_token
from baton_serve.workers.rank.native.weights import NativeWeight

torch.manual_seed(0)
weight, bias, given = (torch.randn(*size).bfloat16() for size in ((330, 1100), (330,), (515, 1100)))
native, exact = NativeWeight(weight, bias), given.double() @ weight.double().T + bias.double()
found = native.times(given)
terms = given.double().abs() @ weight.double().abs().T
right = (found.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-6 * terms
same = [torch.equal(native.times(given[:rows]), found[:rows]) for rows in (1, 4, 7, 16, 17, 513)]
torch.set_num_threads(1)
print(bool(right.all()), all(same) and torch.equal(native.times(given), found))
for head_dim, length in ((16, 70), (32, 150), (48, 65), (64, 300), (112, 65)):
    blocks = torch.randn(length // 16 + 1, 2, 2, 16, head_dim).bfloat16()
    table = torch.arange(len(blocks), dtype=torch.int32)
    query = torch.randn(6, length, head_dim).bfloat16()
    out, row = torch.empty(length, 6, head_dim).bfloat16(), torch.empty(1, 6, head_dim).bfloat16()
    ends = torch.tensor([length], dtype=torch.int32)
    attend_in_blocks(query, blocks, table, length, 0.2, 40, out)
    attend_one_token(query[:, -1:], blocks, table[None], ends, 0.2, 40, row)
    same = torch.equal(out[-1:], row)
    attend_in_blocks(query, blocks, table, length, 0.2, None, out)
    attend_one_token(query[:, -1:], blocks, table[None], ends, 0.2, None, row)
    chunk = torch.empty(9, 6, head_dim).bfloat16()
    attend_in_blocks(query[:, -9:], blocks, table, length, 0.2, None, chunk)
    same = same and torch.equal(chunk, out[-9:])
    both = blocks.double().permute(2, 1, 0, 3, 4).reshape(2, 2, -1, head_dim)[:, :, :length].repeat_interleave(3, 1)
    scores = (query.double() @ both[0].transpose(1, 2) * 0.2).masked_fill(torch.ones(length, length).triu(1) > 0, -1e9)
    exact = (scores.softmax(-1) @ both[1]).transpose(0, 1)
    print(bool(((out.double() - exact).abs() < 0.02).all()), same and torch.equal(out[-1:], row))
"""


@pytest.mark.skipif(not takes(torch.bfloat16, 2), reason="this processor has no tiles for the type")
@pytest.mark.slow  # compiles all of it
@pytest.mark.parametrize("way", ["pairs", "float32"])
def test_both_ways_to_multiply_bfloat16(way: str) -> None:
    if way == "pairs" and "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no instruction for it")
    assert set(run(EITHER_WAY, way, OMP_NUM_THREADS="2").split("\n")) == {"True True"}


@pytest.mark.skipif(not has_tiles(torch.float32), reason="this processor has no instructions for them")
@pytest.mark.parametrize("limit", [{}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}], ids=str)
def test_openmp_may_give_fewer_threads_than_torch_has(limit: dict[str, str]) -> None:
    assert run(WITH_FEWER, OMP_NUM_THREADS="2", **limit) == "True"


@pytest.mark.parametrize(
    "target",
    [
        {"BATON_TILES": "off"},
        pytest.param({"NUMBA_ENABLE_AVX": "0"}, marks=pytest.mark.slow),
        pytest.param({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_there_are_no_tiles_where_numba_compiles_for_less_than_this_processor_or_none_are_wanted(
    target: dict[str, str],
) -> None:
    program = (
        "import torch; from baton_serve.workers.rank.native.support import has_tiles; print(has_tiles(torch.bfloat16))"
    )
    assert run(program, **target) == "False"


def test_what_the_variable_may_say_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(support.TILES_VARIABLE, "of")
    with pytest.raises(ValueError, match="BATON_TILES is on or off, not 'of'"):
        support._can_have_tiles.__wrapped__(torch.float32)


def run(program: str, *arguments: str, **environment: str) -> str:
    shown = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.strip()


def test_an_odd_number_of_inputs_has_no_pairs() -> None:
    assert not takes(torch.bfloat16, 33)
    assert takes(torch.float32, 33) == takes(torch.float32, 32)


def test_other_types_have_no_program() -> None:
    assert not takes(torch.float16, 32)
