"""The conversations of one run, which are the same for the same seed. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from baton_serve.baton.demo.training.questions import load_questions

#: In the first ``BURST_S`` of every ``PERIOD_S`` seconds conversations come ``BURST_FACTOR`` times as fast.
BURST_S, PERIOD_S, BURST_FACTOR = 2.0, 10.0, 4.0


@dataclass(frozen=True)
class Turn:
    """A question, the length of its answer in tokens, and the pause before the next question."""

    question: str
    num_new: int
    think_s: float


@dataclass(frozen=True)
class Conversation:
    """When it begins, seconds after the start, and its turns."""

    begin_s: float
    system: str
    turns: tuple[Turn, ...]


def conversations(seed: int, salt: str, seconds: float, rate: float) -> list[Conversation]:
    """Conversations, the same for the same seed but for ``salt``, with which every prompt begins.

    ``rate`` is how many begin in a second outside of bursts.
    """
    rng = random.Random(seed)
    facts = load_questions()

    def words(num: int) -> str:
        return " ".join(rng.choice(facts).answer for _ in range(num))

    systems = [f"{salt} {words(rng.randint(4, 24))}" for _ in range(8)]
    made: list[Conversation] = []
    now_s = 0.0
    while True:
        now_s += rng.expovariate(rate * (BURST_FACTOR if now_s % PERIOD_S < BURST_S else 1))
        if now_s > seconds:
            return made
        system = systems[min(int(rng.paretovariate(1)) - 1, len(systems) - 1)]
        turns = [
            Turn(words(rng.randint(1, 6)), rng.randint(8, 40), rng.expovariate(2)) for _ in range(rng.randint(1, 4))
        ]
        made.append(Conversation(now_s, system, tuple(turns)))
