"""What a server is asked, and how fast it was. Prompts are token ids, so no tokenizer is measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TypeAlias

from bench.client import AnswerError, Client
from bench.models.sized import VOCAB_SIZE

#: Streams that decode at once.
BATCHES = (1, 8, 32)
#: Tokens of the prompts of streams whose decoding is measured.
SHORT_PROMPT = 16
#: Token ids below this one are special.
FIRST_TOKEN = 6
NUM_ARRIVALS = 24
#: How much longer the arrivals of a trace take than the slower server needs for all of them at once.
SLACK = 1.25


class Ask:
    """Completions of one server."""

    def __init__(self, client: Client, url: str, model: str) -> None:
        self._client, self._url, self._model = client, url, model

    async def __call__(self, prompt: Sequence[int], num_tokens: int) -> float:
        """Seconds that the completion took. Raises AnswerError, also if it has not as many tokens."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        began_s = time.perf_counter()
        answer = await self._client.ask(self._url, body)
        took_s = time.perf_counter() - began_s
        if answer["usage"]["completion_tokens"] != num_tokens:
            raise AnswerError(f"{self._url} answers with {answer['usage']} instead of {num_tokens} tokens")
        return took_s


@dataclass(frozen=True)
class Prefill:
    """One long prompt, of which one token is asked."""

    num_tokens: int
    unit = "tokens/s"

    @property
    def name(self) -> str:
        return f"prefill of {self.num_tokens}"

    async def run(self, ask: Ask, seed: int) -> float:
        """Tokens per second of the prompt."""
        return self.num_tokens / await ask(prompt(random.Random(seed), self.num_tokens), 1)


@dataclass(frozen=True)
class Decode:
    """Several streams at once, with short prompts."""

    batch: int
    num_tokens: int
    unit = "tokens/s"

    @property
    def name(self) -> str:
        return f"decode at {self.batch}"

    async def run(self, ask: Ask, seed: int) -> float:
        """Tokens per second of all streams together, from the first request to the end of the last stream."""
        rng = random.Random(seed)
        prompts = [prompt(rng, SHORT_PROMPT) for _ in range(self.batch)]
        began_s = time.perf_counter()
        await asyncio.gather(*(ask(each, self.num_tokens) for each in prompts))
        return self.batch * self.num_tokens / (time.perf_counter() - began_s)


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: when it comes, from 0 to 1, and its tokens."""

    at: float
    prompt: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True)
class Trace:
    """Requests of many lengths that come as a Poisson process, the same for every server.

    With a length of 0 seconds all come at once.
    """

    most_prompt: int
    most_tokens: int
    seconds: float = 0.0
    name = "trace"
    unit = "requests/s of latency"

    def arrivals(self, seed: int) -> list[Arrival]:
        """The requests, in order. The lengths' logarithms are uniform."""
        rng = random.Random(seed)
        gaps = [rng.expovariate(1.0) for _ in range(NUM_ARRIVALS)]
        found, now = [], 0.0
        for gap in gaps:
            lengths = [round(most ** rng.uniform(0.5, 1.0)) for most in (self.most_prompt, self.most_tokens)]
            found.append(Arrival(now / sum(gaps), tuple(prompt(rng, lengths[0])), lengths[1]))
            now += gap
        return found

    async def run(self, ask: Ask, seed: int) -> float:
        """One over the mean latency in seconds."""
        latencies = await asyncio.gather(*(self._one(ask, each) for each in self.arrivals(seed)))
        return 1 / mean(latencies)

    async def _one(self, ask: Ask, arrival: Arrival) -> float:
        await asyncio.sleep(arrival.at * self.seconds)
        return await ask(arrival.prompt, arrival.num_tokens)

    async def burst_s(self, ask: Ask, seed: int) -> float:
        """Seconds for all requests at once."""
        began_s = time.perf_counter()
        await asyncio.gather(*(ask(each.prompt, each.num_tokens) for each in self.arrivals(seed)))
        return time.perf_counter() - began_s


#: One kind of load. ``run`` returns a rate; larger is better.
Work: TypeAlias = Prefill | Decode | Trace


def prompt(rng: random.Random, num_tokens: int) -> list[int]:
    """A prompt that no cache has seen."""
    return [rng.randrange(FIRST_TOKEN, VOCAB_SIZE) for _ in range(num_tokens)]
