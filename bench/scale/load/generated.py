"""A generated load: conversations that begin with a shared system prompt, in bursts."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.scale.load.job import PREFIX_TOKENS, Job


@dataclass(frozen=True)
class Shape:
    """How a generated load looks. Lengths are in tokens; the means are of a log-normal distribution.

    In the first ``burst_s`` of every ``period_s`` seconds conversations come ``burst_factor`` times as often as in the
    rest; ``rate`` is the average of requests a second.
    """

    rate: float
    seconds: float
    mean_turn_tokens: float = 300.0
    mean_new_tokens: float = 200.0
    max_turns: int = 4
    mean_think_s: float = 6.0
    num_systems: int = 40
    burst_factor: float = 3.0
    burst_s: float = 2.0
    period_s: float = 10.0


def generate(shape: Shape, rng: random.Random) -> Iterator[Job]:
    """The requests in order of their times.

    A later turn comes after its pause whether or not the earlier one has been answered: the load does not depend on
    what serves it, so two clusters are offered the same.
    """
    ids = itertools.count(shape.num_systems * 64)
    turns = (shape.max_turns + 1) / 2
    base_rate = shape.rate / turns / _mean_factor(shape)
    coming: list[tuple[float, int, Job]] = []
    number = itertools.count()
    begin_s = -shape.mean_think_s * shape.max_turns  # so that later turns come from the start
    while begin_s < shape.seconds:
        for job in _conversation(shape, rng, begin_s, ids):
            if 0 <= job.came_s < shape.seconds:
                heapq.heappush(coming, (job.came_s, next(number), job))
        in_burst = begin_s % shape.period_s < shape.burst_s
        begin_s += rng.expovariate(base_rate * (shape.burst_factor if in_burst else 1))
        while coming and coming[0][0] <= begin_s:
            yield heapq.heappop(coming)[2]
    while coming:
        yield heapq.heappop(coming)[2]


def _conversation(shape: Shape, rng: random.Random, begin_s: float, ids: Iterator[int]) -> Iterator[Job]:
    system = min(int(rng.paretovariate(1)), shape.num_systems) - 1
    num_tokens = PREFIX_TOKENS * (1 + system % 2)
    prefix = [system * 64 + place for place in range(1 + system % 2)]
    for _ in range(rng.randint(1, shape.max_turns)):
        num_tokens += max(1, round(rng.lognormvariate(0, 1) * shape.mean_turn_tokens / 1.65))
        # A block that the last turn did not fill has another content now, so all but full blocks get new ids.
        prefix += [next(ids) for _ in range(-(-num_tokens // PREFIX_TOKENS) - len(prefix))]
        num_new = max(1, round(rng.lognormvariate(0, 0.7) * shape.mean_new_tokens / 1.28))
        yield Job(begin_s, num_tokens, num_new, tuple(prefix))
        if num_tokens % PREFIX_TOKENS:
            prefix[-1] = next(ids)
        num_tokens += num_new
        begin_s += rng.expovariate(1 / shape.mean_think_s)


def _mean_factor(shape: Shape) -> float:
    return 1 + (shape.burst_factor - 1) * shape.burst_s / shape.period_s
