"""When a child that died is started again, and when there is no point in it."""

from __future__ import annotations

from baton_serve.baton.processes.crew import Crew
from baton_serve.baton.processes.restarts import (
    FIRST_PAUSE_S,
    FIRST_RARE_PAUSE_S,
    JITTER,
    LONGEST_PAUSE_S,
    LONGEST_RARE_PAUSE_S,
    MAX_VAIN_STARTS,
    STEADY_S,
    Restarts,
)


def restarts() -> Restarts:
    return Restarts(stretch=lambda: 1.0)


def test_the_pause_grows_up_to_a_bound() -> None:
    it = restarts()
    pauses = []
    for now_s in range(12):
        it.serves(float(now_s))
        pauses.append(it.died(float(now_s)))
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_who_has_served_long_dies_as_if_for_the_first_time() -> None:
    it = restarts()
    for now_s in (0.0, 1.0, 2.0):
        it.serves(now_s)
        it.died(now_s)
    it.serves(10.0)
    assert it.died(10.0 + STEADY_S) == FIRST_PAUSE_S


def test_there_is_no_hope_of_who_never_served() -> None:
    it = restarts()
    assert not it.is_hopeless
    pauses = [it.died(1.0) for _ in range(12)]
    assert it.is_hopeless
    assert pauses[:3] == [FIRST_RARE_PAUSE_S, 2 * FIRST_RARE_PAUSE_S, 4 * FIRST_RARE_PAUSE_S]
    assert pauses[-1] == LONGEST_RARE_PAUSE_S


def test_there_is_no_hope_of_who_does_not_come_back() -> None:
    it = restarts()
    it.serves(0.0)
    it.died(0.0)
    hopes = []
    for _ in range(MAX_VAIN_STARTS):
        it.died(1.0)
        hopes.append(not it.is_hopeless)
    assert hopes == [True] * (MAX_VAIN_STARTS - 1) + [False]


def test_serving_once_is_enough_for_new_patience() -> None:
    it = restarts()
    it.died(0.0)
    it.serves(1.0)
    assert not it.is_hopeless
    assert it.died(1.0) == FIRST_PAUSE_S


def test_who_dies_together_does_not_start_together() -> None:
    pauses = [Restarts().died(0.0) for _ in range(100)]
    assert len(set(pauses)) > 50
    assert FIRST_RARE_PAUSE_S <= min(pauses) < max(pauses) <= (1 + JITTER) * FIRST_RARE_PAUSE_S


def test_a_crew_is_lost_when_there_is_no_hope_of_anybody() -> None:
    crew = Crew()
    for name in ("decode-1", "decode-2"):
        crew.note(name, is_hopeless=False)
    crew.note("decode-1", is_hopeless=True)
    assert not crew.is_lost
    crew.note("decode-2", is_hopeless=True)
    assert crew.is_lost
    crew.note("decode-1", is_hopeless=False)
    assert not crew.is_lost
    for _ in range(2):
        crew.leave("decode-1")
    assert crew.is_lost
