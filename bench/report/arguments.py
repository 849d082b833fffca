"""What benchmarks accept on the command line. What cannot be measured is refused before anything runs."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

NumberT = TypeVar("NumberT", int, float)


def at_least(least: NumberT) -> Callable[[str], NumberT]:
    """For ``type=``: a number of the type of ``least`` that is not less."""

    def read(text: str) -> NumberT:
        number = _number(text, type(least))
        if not number >= least:
            raise ArgumentTypeError(f"{text} is less than {least}")
        return number

    return read


def above_zero(text: str) -> float:
    """For ``type=``: a number above 0."""
    number = _number(text, float)
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text} is not above 0")
    return number


def counts(text: str) -> list[int]:
    """For ``type=``: whole numbers above 0 with commas between them."""
    return [at_least(1)(number) for number in text.split(",")]


def new_file(text: str) -> Path:
    """For ``type=``: a file that can be written, because its folder exists."""
    path = Path(text)
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def _number(text: str, kind: type[NumberT]) -> NumberT:
    try:
        return kind(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no {'whole ' if kind is int else ''}number") from None
