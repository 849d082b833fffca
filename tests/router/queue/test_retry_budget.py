"""How much may be tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.queue.retry_budget import WINDOW_S, RetryBudget


def taken(budget: RetryBudget, now_s: float, wanted: int = 1000) -> int:
    return sum(budget.take(now_s) for _ in range(wanted))


def test_a_share_of_the_requests_and_a_floor_may_be_tried_again() -> None:
    budget = RetryBudget(0.2, 1.0)
    for _ in range(100):
        budget.request(5.0)
    assert taken(budget, 5.5) == 20 + WINDOW_S
    assert taken(budget, 6.0) == 0


def test_requests_and_retries_of_long_ago_count_no_longer() -> None:
    budget = RetryBudget(0.5, 0.0)
    budget.request(1000.0)
    budget.request(1000.0)
    assert taken(budget, 1000.0 + WINDOW_S - 1) == 1
    assert taken(budget, 1000.0 + WINDOW_S) == 0, "the requests are forgotten"
    for _ in range(4):
        budget.request(1020.0)
    assert taken(budget, 1020.0) == 2, "so are the retries"


def test_no_retry_is_allowed_if_so_set() -> None:
    assert taken(RetryBudget(0.0, 0.0), 1.0) == 0


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=60), st.floats(0, 1), st.integers(0, 2))
def test_there_are_never_more_retries_than_the_settings_say(
    steps: list[tuple[float, bool]], fraction: float, floor: int
) -> None:
    """In any window that ends with a retry: those of the last ``WINDOW_S - 1`` whole seconds are all counted."""
    budget, now_s = RetryBudget(fraction, floor), 0.0
    requests: list[float] = []
    retries: list[float] = []
    for wait_s, is_request in steps:
        now_s += wait_s
        if is_request:
            budget.request(now_s)
            requests.append(now_s)
        elif budget.take(now_s):
            retries.append(now_s)
            since_s = int(now_s) - WINDOW_S + 1
            num_requests = sum(at_s >= since_s for at_s in requests)
            assert sum(at_s >= since_s for at_s in retries) <= fraction * num_requests + floor * WINDOW_S
