"""The right answer to every question: what one worker that prefills and decodes answers when nothing else runs."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from baton_serve.baton.cluster.process import alone
from baton_serve.baton.torture.clients.client import Manner, ask_once, make_client
from baton_serve.baton.torture.clients.features import num_per_prompt, singles
from baton_serve.baton.torture.records import Attempt, Ending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import httpx

    from baton_serve.baton.cluster.process import Startable
    from baton_serve.baton.torture.records import ClientAnswer, Question

#: Questions asked at once in the second round.
NUM_TOGETHER = 8
#: Share of the questions whose answers may depend on rounding. If there are more, the cause is something else.
MAX_UNCLEAR = 0.25


class NoReferenceError(Exception):
    """The quiet worker did not answer, or did not give the same answers each time. The message is one line for a
    person.
    """


async def answer_all(
    folder: Path, questions: Sequence[Question], workers: Mapping[str, Startable]
) -> dict[int, ClientAnswer]:
    """The answers by the number of the question, without those that depend on rounding.

    Each of ``workers``, by name, runs alone and is asked all questions twice, one by one and then several at once:
    sums in another order may turn a near tie between two tokens, and a question with such a tie says nothing about
    right and wrong. Raises NoReferenceError, ChildDiedError.
    """
    rounds = [one for name, spec in workers.items() for one in await _answer_twice(folder, questions, name, spec)]
    return agreed(questions, rounds)


def agreed(questions: Sequence[Question], rounds: Sequence[Sequence[ClientAnswer]]) -> dict[int, ClientAnswer]:
    """The answers that are the same in all rounds, by the number of the question.

    Raises NoReferenceError when too many differ.
    """
    clear = {
        question.number: first
        for question, first, *others in zip(questions, *rounds, strict=True)
        if all(_texts(other) == _texts(first) for other in others)
    }
    if len(clear) < len(questions) * (1 - MAX_UNCLEAR):
        raise NoReferenceError(
            f"the quiet worker answered {len(questions) - len(clear)} of {len(questions)} questions in two ways"
        )
    return clear


def _texts(answer: ClientAnswer) -> list[str]:
    return [choice.text for choice in answer.choices]


async def _answer_twice(
    folder: Path, questions: Sequence[Question], name: str, spec: Startable
) -> tuple[Sequence[ClientAnswer], Sequence[ClientAnswer]]:
    async with alone(name, spec, folder) as worker, make_client() as http:
        one_by_one = [await _answer(http, worker.url, question) for question in questions]
        gate = asyncio.Semaphore(NUM_TOGETHER)
        together = await asyncio.gather(*(_answer(http, worker.url, question, gate) for question in questions))
    return one_by_one, together


async def _answer(
    http: httpx.AsyncClient, url: str, question: Question, gate: asyncio.Semaphore | None = None
) -> ClientAnswer:
    """The answer. A worker computes one choice, so a question for several is asked as so many questions."""
    async with gate or asyncio.Semaphore():
        answers = [await _answer_one(http, url, single) for single in singles(question)]
    if len(answers) == 1:
        return answers[0]
    answers[0].others = answers[1:]
    answers[0].num_tokens = _together([one.num_tokens for one in answers], num_per_prompt(question))
    return answers[0]


def _together(counts: Sequence[tuple[int, int] | None], per_prompt: int) -> tuple[int, int]:
    """The numbers of tokens of all choices, in which each prompt counts once."""
    known = [one or (0, 0) for one in counts]
    return sum(prompt for prompt, _ in known[::per_prompt]), sum(completion for _, completion in known)


async def _answer_one(http: httpx.AsyncClient, url: str, question: Question) -> ClientAnswer:
    attempt = Attempt(question.number, "", False, time.monotonic())
    await ask_once(http, url, question, Manner(stream=False), attempt)
    if attempt.ending is not Ending.DONE:
        raise NoReferenceError(f"the quiet worker did not answer {question}: {attempt.ending}, {attempt.error}")
    return attempt.answer
