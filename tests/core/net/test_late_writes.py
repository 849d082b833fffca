"""Writes that are put off in a burst: which ones, and in which order; on a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from baton_serve.core.net.late_writes import BURST, LateWrites, Writer
from tests.kits.clock import Turns

pytestmark = pytest.mark.interpreted  # for writers that are made up


class Note(Writer):
    def __init__(self, written: list[int], number: int) -> None:
        self.written = written
        self.number = number

    def write_now(self) -> None:
        if self.number < 0:
            raise OSError("no")
        self.written.append(self.number)


@pytest.fixture
def written() -> list[int]:
    return []


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def add(turns: Turns, written: list[int]) -> Callable[[int], None]:
    late_writes = LateWrites(turns)
    return lambda number: late_writes.add(Note(written, number))


def test_single_writes_are_not_put_off(add: Callable[[int], None], turns: Turns, written: list[int]) -> None:
    for number in range(20):
        add(number)
        assert written[-1] == number
        turns.next()
    assert not turns.due


def test_in_a_burst_all_writes_of_a_turn_come_at_its_end_in_order(
    add: Callable[[int], None], turns: Turns, written: list[int]
) -> None:
    for number in range(BURST + 3):
        add(number)
    assert written == list(range(BURST)), "that it is a burst shows only now"
    assert len(turns.due) == 1
    turns.next()
    assert written == list(range(BURST + 3))
    add(100)
    assert written[-1] != 100, "the turn before had several"
    turns.next()
    assert written[-1] == 100


def test_a_burst_ends_with_a_turn_of_one_write(add: Callable[[int], None], turns: Turns, written: list[int]) -> None:
    for number in range(BURST + 1):
        add(number)
    turns.next()
    add(100)
    assert written[-1] == 100
    assert not turns.due


def test_a_write_that_another_write_leads_to_comes_in_the_next_turn(turns: Turns, written: list[int]) -> None:
    late_writes = LateWrites(turns)

    class Asks(Note):
        def write_now(self) -> None:
            super().write_now()
            if self.number < 12:
                late_writes.add(Asks(written, self.number + 10))

    for number in range(BURST + 3):
        late_writes.add(Asks(written, number) if number >= BURST else Note(written, number))
    turns.next()
    assert written == list(range(BURST + 3))
    turns.next()
    assert written == [*range(BURST + 3), *(number + 10 for number in range(BURST, BURST + 3))]


def test_a_write_that_fails_takes_none_of_the_others(
    add: Callable[[int], None], turns: Turns, written: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(BURST):
        add(number)
    for number in (-1, 100, 101):
        add(number)
    turns.next()
    assert written == [*range(BURST), 100, 101]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
