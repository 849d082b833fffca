"""The questions and answers that the demo model was taught, as values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

QUESTIONS_FILE = Path(__file__).parent / "questions.yaml"
HELD_OUT_FILE = Path(__file__).parent / "held_out.yaml"
NEWCOMER_FILE = Path(__file__).parent / "newcomer.yaml"


@dataclass(frozen=True, slots=True)
class Fact:
    """One answer and the phrasings that ask for it. ``also``: other wordings of the answer, which sampling may pick."""

    id: str
    ask: tuple[str, ...]
    answer: str
    also: tuple[str, ...] = ()

    @property
    def wordings(self) -> tuple[str, ...]:
        """All answers that are right."""
        return (self.answer, *self.also)


@cache
def load_questions(path: Path = QUESTIONS_FILE) -> tuple[Fact, ...]:
    """All facts in file order. Raises KeyError or TypeError when the file is not shaped as its head says."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["facts"]
    return tuple(_fact(**entry) for entry in entries)


def _fact(id: str, ask: list[str], answer: str, also: Sequence[str] = ()) -> Fact:
    return Fact(id, tuple(ask), answer, tuple(also))


def load_held_out() -> tuple[Fact, ...]:
    """The same answers with phrasings that training never sees. Raises KeyError for a fact that does not exist."""
    return _other_phrasings(HELD_OUT_FILE)


def load_newcomer() -> tuple[Fact, ...]:
    """What people type first, every one of which has to be answered. As ``load_held_out``."""
    return _other_phrasings(NEWCOMER_FILE)


def _other_phrasings(path: Path) -> tuple[Fact, ...]:
    facts = {fact.id: fact for fact in load_questions()}
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(replace(facts[name], ask=tuple(ask)) for name, ask in entries.items())


#: What the model was asked in training.
QUESTIONS = load_questions()
