"""Products by native programs: those of float64, and the same for a token among any others and with any threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from workers.rank.native.support import has_tiles, is_available

if not is_available(torch.float32):
    pytest.skip("needs Numba", allow_module_level=True)

from workers.rank.native.products import CHUNK_ROWS, CHUNK_WORDS, LEAST_FOR_TWO, ROWS
from workers.rank.native.tiles import WIDTH
from workers.rank.native.weights import NativeWeight, laid_out, takes

DTYPES = (torch.float32, torch.bfloat16)
#: Roundings of a type, of which a result has one more than its float32 sum.
EPS = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
#: More inputs than are computed at once, for both types.
LONG = 2 * CHUNK_WORDS + 100


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


@pytest.mark.parametrize("outputs", [1, 24, 64, 65, 200])
@pytest.mark.parametrize("inputs", [2, 40, 256, LONG])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_float64(dtype: torch.dtype, outputs: int, inputs: int, has_bias: bool) -> None:
    weight, bias = layer(dtype, outputs, inputs)
    native = NativeWeight(weight, bias if has_bias else None)
    for rows in (1, 2, 3, 4, 5, 11):
        given = torch.randn(rows, inputs).to(dtype)
        found = native.times(given)
        assert found.dtype == dtype and found.shape == (rows, outputs)
        assert_right(found, given, weight, bias if has_bias else None)


def test_a_token_has_the_same_product_among_any_others(dtype: torch.dtype) -> None:
    for inputs in (64, LONG):
        native = NativeWeight(*layer(dtype, 100, inputs))
        given = torch.randn(ROWS + 7, inputs).to(dtype)
        together = native.times(given)
        for rows in (1, 2, 3, 4, 6, 9, CHUNK_ROWS + 1, ROWS, ROWS + 1):
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
from workers.rank.native.attention.causal import attend_causally
from workers.rank.native.weights import NativeWeight

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


@pytest.mark.skipif(not has_tiles(torch.float32), reason="this processor has no instructions for them")
@pytest.mark.parametrize("limit", [{}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}], ids=str)
def test_openmp_may_give_fewer_threads_than_torch_has(limit: dict[str, str]) -> None:
    assert run(WITH_FEWER, OMP_NUM_THREADS="2", **limit) == "True"


@pytest.mark.parametrize(
    "target", [{"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, {"NUMBA_ENABLE_AVX": "0"}], ids=str
)
def test_there_are_no_tiles_where_numba_compiles_for_less_than_this_processor(target: dict[str, str]) -> None:
    program = "import torch; from workers.rank.native.support import has_tiles; print(has_tiles(torch.bfloat16))"
    assert run(program, **target) == "False"


def run(program: str, **environment: str) -> str:
    shown = subprocess.run(
        [sys.executable, "-c", program],
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
