"""When a child that died is started again."""

from __future__ import annotations

from baton.restarts import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_VAIN_STARTS, STEADY_S, Restarts


def test_who_never_served_is_given_up() -> None:
    assert Restarts().died(1.0) is None


def test_the_pause_grows_up_to_a_bound() -> None:
    restarts = Restarts()
    pauses = []
    for now_s in range(12):
        restarts.serves(float(now_s))
        pauses.append(restarts.died(float(now_s)))
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_who_has_served_long_dies_as_if_for_the_first_time() -> None:
    restarts = Restarts()
    for now_s in (0.0, 1.0, 2.0):
        restarts.serves(now_s)
        restarts.died(now_s)
    restarts.serves(10.0)
    assert restarts.died(10.0 + STEADY_S) == FIRST_PAUSE_S


def test_who_does_not_come_back_is_given_up() -> None:
    restarts = Restarts()
    restarts.serves(0.0)
    answers = [restarts.died(float(now_s)) for now_s in range(MAX_VAIN_STARTS + 1)]
    assert None not in answers[:-1]
    assert answers[-1] is None


def test_serving_once_is_enough_for_new_patience() -> None:
    restarts = Restarts()
    restarts.serves(0.0)
    for _ in range(MAX_VAIN_STARTS):
        assert restarts.died(1.0) is not None
    restarts.serves(2.0)
    assert restarts.died(2.0) is not None
    assert restarts.died(3.0) is not None
