"""The file the demo model is taught from."""

from __future__ import annotations

from collections import Counter

from demo import QUESTIONS


def _spoken(question: str) -> str:
    return question.lower().rstrip("?!. ")


def test_no_phrasing_asks_for_two_answers() -> None:
    counts = Counter(_spoken(question) for fact in QUESTIONS for question in fact.ask)
    assert [question for question, count in counts.items() if count > 1] == []


def test_ids_and_answers_are_distinct() -> None:
    assert len({fact.id for fact in QUESTIONS}) == len(QUESTIONS)
    assert len({fact.answer for fact in QUESTIONS}) == len(QUESTIONS)


def test_every_fact_is_asked_in_several_ways_and_answered_in_whole_sentences() -> None:
    assert [fact.id for fact in QUESTIONS if len(fact.ask) < 3] == []
    assert [fact.id for fact in QUESTIONS if fact.answer != fact.answer.strip() or "\n" in fact.answer] == []


def test_some_answers_are_not_ascii() -> None:
    """Streams of the demo model must be able to show a character cut in half."""
    assert sum(not fact.answer.isascii() for fact in QUESTIONS) >= 5
