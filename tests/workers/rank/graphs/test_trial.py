"""What steps with chunks have to show before they are recorded."""

from __future__ import annotations

import pytest
import torch

from baton_serve.workers.rank.graphs.trial import ComparedRows, StepTime, is_bound_by_host, largest_worth_it
from baton_serve.workers.rank.in_place.attention import Layer

SIZES = [16, 32, 64, 128, 192, 256, 320, 512, 640]


@pytest.mark.parametrize(
    ("late_ms", "is_bound"),
    [
        ([0.0, 0.1, 0.2], True),
        ([0.2, 9.0, 0.1], True),  # another rank was late once
        ([3.0, 0.0, 4.0], False),  # this host was interrupted once
        ([3.0, 2.0, 4.0], False),
    ],
)
def test_one_odd_time_does_not_matter(late_ms: list[float], *, is_bound: bool) -> None:
    assert is_bound_by_host([StepTime(10e-3, late / 1000) for late in late_ms]) == is_bound


@pytest.mark.parametrize(
    ("tried", "largest"),
    [
        ({128: True, 256: True, 512: True, 640: True}, 640),
        ({128: True, 256: True, 512: True, 640: False}, 512),
        ({128: True, 256: False, 512: True, 640: True}, 128),
        ({128: False, 256: True, 512: False, 640: False}, 64),
        ({16: False, 32: False}, 16),
    ],
)
def test_sizes_below_the_first_bad_one_are_worth_it(tried: dict[int, bool], largest: int) -> None:
    assert largest_worth_it(SIZES, tried) == largest


class Gives:
    """``Rows`` that give the same numbers to each token."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = torch.tensor(numbers)

    def attend(self, layer: Layer) -> None:
        layer.out[: len(self._numbers)] = self._numbers[:, None, None]


@pytest.mark.parametrize(
    ("found", "are_alike"),
    [
        ([1.0, 2.0], True),
        ([1.05, 2.05], True),
        ([1.0, 2.0, 9.0], True),  # behind the tokens that are compared
        ([1.2, 2.0], False),
        ([1.0], False),
        ([1.0, float("nan")], False),
    ],
)
def test_rows_are_alike_up_to_rounding(found: list[float], *, are_alike: bool) -> None:
    out = torch.full((4, 2, 3), 7.0)
    layer = Layer(out, out, out, out, 1.0, None, out)
    rows = ComparedRows(Gives(*found), Gives(1.0, 2.0), 2)
    rows.attend(layer)
    assert rows.are_alike == are_alike


def test_the_model_goes_on_with_what_was_found_and_no_difference_is_forgotten() -> None:
    rows = ComparedRows(Gives(1.5, 2.0), Gives(1.0, 2.0), 2)
    out = torch.full((2, 1, 1), 7.0)
    layer = Layer(out, out, out, out, 1.0, None, out)
    rows.attend(layer)
    assert out.flatten().tolist() == [1.5, 2.0]
    rows._found = Gives(1.0, 2.0)
    rows.attend(layer)
    assert not rows.are_alike


def test_a_model_without_numbers_is_like_itself() -> None:
    out = torch.zeros(2, 1, 1)
    rows = ComparedRows(Gives(float("nan"), 1.0), Gives(float("nan"), 1.0), 2)
    rows.attend(Layer(out, out, out, out, 1.0, None, out))
    assert rows.are_alike
