"""When steps are sent ahead."""

from __future__ import annotations

import pytest

from baton_serve.workers.engine.step_pace import MARGIN_S, NUM_STEPS, StepPace


def wait_s(*taken_s: float) -> float:
    pace = StepPace()
    for seconds in taken_s:
        pace.note(seconds)
    return pace.wait_s


def test_at_once_while_nothing_is_known_and_for_short_steps() -> None:
    assert wait_s() == 0
    assert wait_s(MARGIN_S) == wait_s(MARGIN_S / 2) == 0


def test_shortly_before_the_end() -> None:
    assert wait_s(0.01) == pytest.approx(0.01 - MARGIN_S)
    assert wait_s(0.4) == pytest.approx(0.3)


def test_the_shortest_of_the_last_steps_counts() -> None:
    assert wait_s(0.4, 0.8, 4.0) == wait_s(0.4)
    assert wait_s(0.4, *[0.8] * NUM_STEPS) == wait_s(0.8)
