"""One timer for many deadlines, and one line a minute: on a clock that the test moves."""

from __future__ import annotations

import logging

import pytest

from baton_serve.core.net.deadlines import MAX_DELAYS, Deadlines, Timeouts
from baton_serve.core.net.served.notices import BAD_REQUEST, PERIOD_S, TURNED_AWAY, Notices
from tests.kits.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def due() -> list[str]:
    return []


@pytest.fixture
def deadlines(clock: Clock, due: list[str]) -> Deadlines[str]:
    return Deadlines(clock, 10.0, due.append)


def test_each_item_is_due_once_in_its_time(clock: Clock, deadlines: Deadlines[str], due: list[str]) -> None:
    deadlines.add("a")
    clock.go_on(4)
    deadlines.add("b")
    clock.go_on(5.9)
    assert (due, deadlines.oldest()) == ([], "a")
    clock.go_on(0.2)
    assert (due, deadlines.oldest()) == (["a"], "b")
    clock.go_on(100)
    assert (due, deadlines.oldest(), len(deadlines)) == (["a", "b"], None, 0)


def test_adding_an_item_again_gives_it_no_more_time(clock: Clock, deadlines: Deadlines[str], due: list[str]) -> None:
    for _ in range(20):
        deadlines.add("dripping")
        clock.go_on(1)
        if due:
            break
    assert clock.time() == 110
    assert due == ["dripping"]


def test_an_item_that_went_in_time_is_not_due(clock: Clock, deadlines: Deadlines[str], due: list[str]) -> None:
    deadlines.add("a")
    deadlines.add("b")
    deadlines.discard("a")
    deadlines.discard("nobody")
    clock.go_on(100)
    assert due == ["b"]


def test_any_number_of_items_that_come_and_go_need_one_timer(
    clock: Clock, deadlines: Deadlines[str], due: list[str]
) -> None:
    for number in range(1000):
        deadlines.add(str(number))
        deadlines.discard(str(number))
    assert len(clock.waiting) == 1
    deadlines.add("late")
    clock.go_on(10)
    assert due == ["late"]


def test_an_item_that_begins_again_when_it_is_due_delays_no_other(clock: Clock) -> None:
    due: list[tuple[float, str]] = []

    def again(item: str) -> None:
        due.append((clock.time(), item))
        if len(due) == 1:
            deadlines.add(item)

    deadlines = Deadlines[str](clock, 10.0, again)
    deadlines.add("a")
    clock.go_on(1.0)
    deadlines.add("b")
    clock.go_on(20.0)
    assert due == [(110.0, "a"), (111.0, "b"), (120.0, "a")]


def test_no_item_is_due_after_closing(clock: Clock, deadlines: Deadlines[str], due: list[str]) -> None:
    deadlines.add("a")
    deadlines.close()
    clock.go_on(100)
    assert due == []


def test_strangers_cost_a_line_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notices = Notices(clock, "public port")
    for _ in range(600):
        notices.note(BAD_REQUEST)
        clock.go_on(PERIOD_S / 120)
    notices.note(BAD_REQUEST)
    notices.note(TURNED_AWAY)
    clock.go_on(10 * PERIOD_S)
    assert caplog.messages == [
        f"public port: {BAD_REQUEST}: 1",
        f"public port: {BAD_REQUEST}: 119",
        *[f"public port: {BAD_REQUEST}: 120"] * 4,
        f"public port: {BAD_REQUEST}: 1, {TURNED_AWAY}: 1",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO"] * 6 + ["WARNING"]
    assert clock.waiting == [], "and then there is silence"


def test_notices_that_were_not_told_are_told_at_the_end(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notices = Notices(clock, "p")
    notices.note(BAD_REQUEST)
    notices.note(BAD_REQUEST)
    notices.close()
    assert caplog.messages == [f"p: {BAD_REQUEST}: 1"] * 2
    clock.go_on(2 * PERIOD_S)
    assert notices.counts == {BAD_REQUEST: 2}


def test_timeouts_of_any_length_are_due_in_their_time(clock: Clock, due: list[str]) -> None:
    timeouts = Timeouts(clock)
    timeouts.call_later(5.0, lambda: due.append("five"))
    timeouts.call_later(3.0, lambda: due.append("three"))
    timeouts.call_later(5.0, lambda: due.append("cancelled")).cancel()
    clock.go_on(4)
    timeouts.call_later(3.0, lambda: due.append("seven"))
    assert due == ["three"]
    clock.go_on(10)
    assert due == ["three", "five", "seven"]


def test_a_timeout_may_be_cancelled_when_it_was_due_and_begin_another(clock: Clock, due: list[str]) -> None:
    timeouts = Timeouts(clock)

    def again() -> None:
        due.append("again")
        first.cancel()
        timeouts.call_later(3.0, lambda: due.append("last"))

    first = timeouts.call_later(3.0, again)
    clock.go_on(3)
    clock.go_on(3)
    assert due == ["again", "last"]


def test_lengths_that_nobody_waits_for_are_forgotten_and_no_others(clock: Clock, due: list[str]) -> None:
    timeouts = Timeouts(clock)
    timeouts.call_later(1.0, lambda: due.append("kept"))
    for number in range(10 * MAX_DELAYS):
        timeouts.call_later(100.0 + number, lambda: None).cancel()
    assert len(timeouts._by_delay) <= MAX_DELAYS
    clock.go_on(1)
    assert due == ["kept"]


def test_no_timeout_is_called_after_closing(clock: Clock, due: list[str]) -> None:
    timeouts = Timeouts(clock)
    timeouts.call_later(1.0, lambda: due.append("late"))
    timeouts.close()
    clock.go_on(2)
    assert due == []
