"""What one lease costs does not grow with the number of others that are held. Counted, because times say little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from baton_serve.router.vllm.leases.book import Batch, LeaseBook

E = "engine"
FEW, MANY = 50, 5000
DURATION_S = 30


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """Counts the lines of Python that run inside, each turn of a loop anew."""
    num_lines = [0]

    def trace(_frame: Any, event: str, _arg: Any) -> Any:
        num_lines[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield num_lines
    finally:
        sys.settrace(before)


def turn(book: LeaseBook, now_ms: int) -> None:
    """What the router does after each change: see ``VllmLeases._turn``."""
    book.take_over(now_ms)
    if (batch := book.take(E, now_ms)) is not None:
        book.sent(batch, now_ms)
    book.next_ms({E})


def hold(book: LeaseBook) -> None:
    book.hold(E, "new", 0)
    turn(book, 0)


def taken(book: LeaseBook) -> Batch:
    book.hold(E, "new", 0)
    batch = book.take(E, 0)
    assert batch is not None
    return batch


def sent(book: LeaseBook) -> None:
    book.sent(taken(book), 1)
    turn(book, 1)


def not_sent(book: LeaseBook) -> None:
    book.not_sent(taken(book), 1)
    turn(book, 1)


def release(book: LeaseBook) -> None:
    book.hold(E, "new", 0)
    book.release(E, "new", 1)
    turn(book, 1)


def confirm(book: LeaseBook) -> None:
    book.hold(E, "new", 0)
    book.give(E, "new")
    book.confirm(E, "new")
    turn(book, 1)


def held(num_leases: int) -> LeaseBook:
    """Leases that have just been renewed, and as many that were held before them and are gone."""
    book = LeaseBook(DURATION_S)
    for number in range(2 * num_leases):
        book.hold(E, f"lease{number}", 0)
    turn(book, 0)
    for number in range(num_leases):
        book.confirm(E, f"lease{number}")
    return book


@pytest.mark.parametrize("does", [hold, sent, not_sent, release, confirm])
def test_a_lease_costs_the_same_however_many_others_are_held(does: Callable[[LeaseBook], None]) -> None:
    num_lines = []
    for num_leases in (FEW, MANY):
        book = held(num_leases)
        turn(book, 0)
        with counted_lines() as lines:
            does(book)
        num_lines.append(lines[0])
    few, many = num_lines
    assert many <= few + 10, f"{few} lines with {FEW} leases, {many} with {MANY}"


def test_nothing_is_left_of_leases_that_are_gone() -> None:
    """Also where the engine cannot be connected, so that nothing is ever sent to it."""
    book = LeaseBook(DURATION_S)
    book.hold(E, "stays", 0)
    for now_ms in range(0, 3 * DURATION_S * 1000, 10):
        book.hold(E, f"lease{now_ms}", now_ms)
        book.confirm(E, f"lease{now_ms}")
        book.take_over(now_ms)
    assert len(book._by_deadline) <= DURATION_S * 100 + 1
    assert not book._engines
