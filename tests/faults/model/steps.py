"""What a rule yields: a step, and the state after it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.model.state import State

    Moves = Iterator[tuple["Step", State]]


class Kind(IntEnum):
    """PROGRESS happens by itself sooner or later. OTHERS: the client, other traffic. FAULT: costs one of the budget."""

    PROGRESS = 0
    OTHERS = 1
    FAULT = 2


class Step(NamedTuple):
    """``text`` with the numbers in it; formatted for a trace only."""

    kind: Kind
    text: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        mark = {Kind.PROGRESS: " ", Kind.OTHERS: "~", Kind.FAULT: "!"}[self.kind]
        return f"{mark} {self.text.format(*self.numbers)}"


def progress(text: str, *numbers: int) -> Step:
    return Step(Kind.PROGRESS, text, numbers)


def others(text: str, *numbers: int) -> Step:
    return Step(Kind.OTHERS, text, numbers)


def fault(text: str, *numbers: int) -> Step:
    return Step(Kind.FAULT, text, numbers)


def spent(s: State) -> State:
    """One fault less."""
    return s._replace(faults_left=s.faults_left - 1)
