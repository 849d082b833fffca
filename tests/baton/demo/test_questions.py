"""The file the demo model is taught from."""

from __future__ import annotations

import re
from collections import Counter

from baton_serve.baton.demo.training.questions import QUESTIONS, load_held_out, load_newcomer

BOASTS = re.compile(
    r"\b(best(?! priority)|fastest|perfect|guarantee\w*|flawless|unlike|revolutionary|unique|better than)\b", re.I
)


def _spoken(question: str) -> str:
    return question.lower().rstrip("?!. ")


def test_no_phrasing_asks_for_two_answers() -> None:
    facts = {(_spoken(question), fact.id) for fact in QUESTIONS for question in fact.ask}
    counts = Counter(question for question, _ in facts)
    assert [question for question, count in counts.items() if count > 1] == []


def test_ids_and_answers_are_distinct() -> None:
    assert len({fact.id for fact in QUESTIONS}) == len(QUESTIONS)
    answers = [answer for fact in QUESTIONS for answer in fact.wordings]
    assert len(set(answers)) == len(answers)


def test_every_fact_is_asked_in_several_ways_and_answered_in_whole_sentences() -> None:
    assert [fact.id for fact in QUESTIONS if len(fact.ask) < 3] == []
    assert [fact.id for fact in QUESTIONS if fact.answer != fact.answer.strip() or "\n" in fact.answer] == []


def test_some_answers_are_not_ascii() -> None:
    """Streams of the demo model must be able to show a character cut in half."""
    assert sum(not fact.answer.isascii() for fact in QUESTIONS) >= 5


def test_what_newcomers_type_was_never_trained() -> None:
    trained = {_spoken(question) for fact in QUESTIONS for question in fact.ask}
    asked = [_spoken(question) for fact in (*load_newcomer(), *load_held_out()) for question in fact.ask]
    assert trained.isdisjoint(asked)
    assert sum(len(fact.ask) for fact in load_newcomer()) >= 30


def test_no_answer_boasts() -> None:
    answers = [answer for fact in QUESTIONS for answer in fact.wordings]
    assert [answer for answer in answers if BOASTS.search(answer)] == []
