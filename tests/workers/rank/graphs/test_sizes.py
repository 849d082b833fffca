"""For which numbers of rows and tokens there are graphs."""

from __future__ import annotations

import pytest

from baton_serve.workers.rank.graphs.sizes import fitting, graph_sizes, prefill_sizes


@pytest.mark.parametrize(
    ("max_rows", "expected"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (64, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]),
        (100, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96, 100]),
    ],
)
def test_sizes_end_with_the_largest_batch(max_rows: int, expected: list[int]) -> None:
    assert graph_sizes(max_rows) == expected


def test_there_is_a_bound() -> None:
    assert graph_sizes(100_000) == graph_sizes(256)
    assert graph_sizes(256)[-1] == 256


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [(1, [1]), (16, [16]), (150, [16, 32, 64, 128, 150]), (700, [16, 32, *range(64, 513, 64), 640, 700])],
)
def test_sizes_of_prefill_end_with_the_largest_step(max_tokens: int, expected: list[int]) -> None:
    assert prefill_sizes(max_tokens) == expected


def test_larger_steps_of_prefill_are_no_graphs() -> None:
    assert prefill_sizes(100_000) == prefill_sizes(2048)
    assert prefill_sizes(2048)[-6:] == [896, 1024, 1280, 1536, 1792, 2048]


def test_a_batch_takes_the_smallest_that_fits() -> None:
    assert [fitting([1, 2, 4], n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, None]
