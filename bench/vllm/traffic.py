"""What the clients of one round ask, and when they leave. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from baton_serve.baton.demo.training.questions import QUESTIONS

#: Words in a prompt. A word is one to three tokens.
MIN_WORDS, MAX_WORDS = 200, 450
MIN_TOKENS, MAX_TOKENS = 12, 40
#: Seconds after its arrival at which a client leaves that does not wait for its answer, and events after which one
#: leaves that has seen enough of it.
LEAVES_AFTER_S = (0.3, 2.0)
LEAVES_AFTER_EVENTS = (3, 10)


@dataclass(frozen=True)
class Shape:
    """One round. Seconds are from its start; in ``stall_s`` of them D computes nothing."""

    #: Requests a second, on average.
    rate: float = 3.0
    calm_s: float = 9.0
    stall_s: float = 9.0
    after_s: float = 3.0
    #: Share of clients that leave: half of them after some time, half after some events.
    leaving: float = 0.3

    @property
    def arrivals_s(self) -> float:
        """For how long clients come."""
        return self.calm_s + self.stall_s + self.after_s


@dataclass(frozen=True)
class Asked:
    """One request. It is greedy, so there is one right answer."""

    number: int
    at_s: float
    prompt: str
    max_tokens: int
    leaves_after_s: float | None = None
    leaves_after_events: int | None = None

    @property
    def body(self) -> dict[str, object]:
        """The body of the request, without the model."""
        return {"prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": True}


def make_round(seed: int, shape: Shape) -> list[Asked]:
    """The requests of one round, in order of arrival: the same for the same seed and shape."""
    rng = random.Random(seed)
    words = sorted({word for fact in QUESTIONS for text in (*fact.ask, fact.answer) for word in text.split()})
    made: list[Asked] = []
    now_s = rng.expovariate(shape.rate)
    while now_s < shape.arrivals_s:
        prompt = " ".join(rng.choices(words, k=rng.randint(MIN_WORDS, MAX_WORDS)))
        num_tokens = rng.randint(MIN_TOKENS, MAX_TOKENS)
        made.append(Asked(len(made), now_s, prompt, num_tokens, *_leaving(rng, shape)))
        now_s += rng.expovariate(shape.rate)
    return made


def _leaving(rng: random.Random, shape: Shape) -> tuple[float | None, int | None]:
    after_s, after_events = rng.uniform(*LEAVES_AFTER_S), rng.randint(*LEAVES_AFTER_EVENTS)
    drawn = rng.random()
    return (
        after_s if drawn < shape.leaving / 2 else None,
        after_events if shape.leaving / 2 <= drawn < shape.leaving else None,
    )
