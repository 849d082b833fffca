"""Counting what ranks report: any order, twice, and never more than may be open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_serve.workers.sharding.gather import Gather

KEYS = st.integers(0, 3)


@given(
    sizes=st.fixed_dictionaries({key: st.integers(1, 4) for key in range(4)}),
    reports=st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=60),
    max_open=st.integers(1, 4),
)
def test_a_transfer_ends_with_the_last_of_its_members(
    sizes: dict[int, int], reports: list[tuple[int, int]], max_open: int
) -> None:
    """Against a model that keeps each report."""
    gather = Gather(max_open)
    open_now: dict[int, list[int]] = {}
    for key, rank in reports:
        member = rank % sizes[key]
        if key not in open_now and len(open_now) == max_open:
            open_now.pop(next(iter(open_now)))
        open_now.setdefault(key, []).append(member)
        is_last = set(open_now[key]) == set(range(sizes[key]))
        assert gather.report(key, member, sizes[key]) == is_last
        if is_last:
            del open_now[key]
        assert len(gather) == len(open_now)


def test_beyond_the_bound_the_oldest_is_forgotten() -> None:
    gather = Gather(max_open=2)
    for key in range(3):
        gather.report(key, 0, 2)
    assert [gather.report(key, 1, 2) for key in (1, 2, 0)] == [True, True, False]
