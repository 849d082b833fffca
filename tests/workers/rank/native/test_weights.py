"""Products by native programs: those of float64, and the same for a token among any others and with any threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from workers.rank.native.support import is_available

if TYPE_CHECKING:
    from collections.abc import Iterator

if not is_available(torch.float32):
    pytest.skip("needs Numba", allow_module_level=True)

from workers.rank.native.products import CHUNK_BYTES, LEAST_FOR_TWO, ROWS
from workers.rank.native.tiles import WIDTH
from workers.rank.native.weights import NativeWeight, laid_out, takes

DTYPES = (torch.float32, torch.bfloat16)
#: Roundings of a type, of which a result has one more than its float32 sum.
EPS = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
#: More inputs than are computed at once, for both types.
LONG = CHUNK_BYTES // WIDTH // 2 + 100


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not takes(request.param, 2):
        pytest.skip("this processor has no instructions for the type")
    found: torch.dtype = request.param
    return found


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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
        for rows in (1, 2, 3, 4, 6, 9, ROWS, ROWS + 1):
            assert torch.equal(native.times(given[:rows]), together[:rows])
            assert torch.equal(native.times(given[-rows:]), together[-rows:])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("outputs", "inputs"), [(300, 512), (130, LONG), (64, LONG)])
def test_two_threads_give_what_one_does(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    weight, bias = layer(dtype, outputs, inputs)
    both = NativeWeight(weight, bias)
    torch.set_num_threads(1)
    alone = NativeWeight(weight, bias)
    for rows in (1, 9, 300):
        given = torch.randn(rows, inputs).to(dtype)
        assert rows < 9 or rows * outputs * inputs >= LEAST_FOR_TWO, "so large that both compute"
        assert torch.equal(both.times(given), alone.times(given))


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


def test_an_odd_number_of_inputs_has_no_pairs() -> None:
    assert not takes(torch.bfloat16, 33)
    assert takes(torch.float32, 33) == takes(torch.float32, 32)


def test_other_types_have_no_program() -> None:
    assert not takes(torch.float16, 32)
