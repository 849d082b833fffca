"""How many programs share a row."""

from __future__ import annotations

import pytest

from baton_serve.workers.rank.in_place.splits import num_splits


@pytest.mark.parametrize(
    ("num_programs", "max_end", "expected"),
    [
        (8, 32768, 32),  # one sequence of long context: the whole GPU
        (8, 1024, 4),  # no program has less than 256 keys
        (8, 255, 1),
        (64, 32768, 4),
        (264, 32768, 1),  # as many programs as fit anyway
        (100_000, 32768, 1),
    ],
)
def test_splits(num_programs: int, max_end: int, expected: int) -> None:
    assert num_splits(num_programs, max_end, num_processors=132) == expected
