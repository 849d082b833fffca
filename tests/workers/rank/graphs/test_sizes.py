"""For which numbers of rows there are graphs."""

from __future__ import annotations

import pytest

from baton_serve.workers.rank.graphs.decode_graphs import graph_sizes


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
