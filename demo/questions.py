"""The questions and answers that the demo model was taught, as values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

QUESTIONS_FILE = Path(__file__).parent / "questions.yaml"
HELD_OUT_FILE = Path(__file__).parent / "held_out.yaml"


@dataclass(frozen=True, slots=True)
class Fact:
    """One answer and the phrasings that ask for it."""

    id: str
    ask: tuple[str, ...]
    answer: str


@cache
def load_questions(path: Path = QUESTIONS_FILE) -> tuple[Fact, ...]:
    """All facts in file order. Raises KeyError or TypeError when the file is not shaped as its head says."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["facts"]
    return tuple(Fact(id=entry["id"], ask=tuple(entry["ask"]), answer=entry["answer"]) for entry in entries)


def load_held_out() -> tuple[Fact, ...]:
    """The same answers with phrasings that training never sees. Raises KeyError for a fact that does not exist."""
    answers = {fact.id: fact.answer for fact in load_questions()}
    entries = yaml.safe_load(HELD_OUT_FILE.read_text(encoding="utf-8"))
    return tuple(Fact(id=name, ask=tuple(ask), answer=answers[name]) for name, ask in entries.items())
