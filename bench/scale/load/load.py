"""A load that clusters of several sizes can be offered: generated, or read from a trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from bench.scale.costs import Costs
from bench.scale.load.generated import Shape, generate
from bench.scale.load.job import Job
from bench.scale.load.trace import stretched

#: Requests of a generated load that are made to learn its averages.
_SAMPLE_RATE, _SAMPLE_S = 50.0, 60.0
#: Of the tokens of a trace that came before, how many are found: runs are shorter, and begin without caches.
FOUND_SHARE = 0.3


@dataclass(frozen=True)
class Load:
    """Where requests come from. The means are of tokens; about ``cached_share`` of prompts' tokens are in caches of P.

    ``run_s``: for how many seconds a run offers it, if nothing else is said. ``jobs(rate, seconds, seed)`` are the
    requests of so many seconds at that average rate, in order of time.
    """

    name: str
    run_s: float
    jobs: Callable[[float, float, int], Iterator[Job]]
    mean_tokens: float
    mean_new: float
    cached_share: float


def generated() -> Load:
    """Conversations in bursts."""

    def jobs(rate: float, seconds: float, seed: int) -> Iterator[Job]:
        return generate(Shape(rate, seconds), random.Random(seed))

    return Load("generated", 20.0, jobs, *_means([*jobs(_SAMPLE_RATE, _SAMPLE_S, 0)]))


def recorded(trace: Sequence[Job]) -> Load:
    """Copies of a recorded load, as many as the rate asks for."""

    def jobs(rate: float, seconds: float, seed: int) -> Iterator[Job]:
        return stretched(trace, rate, seconds, random.Random(seed))

    mean_tokens, mean_new, cached_share = _means(trace)
    return Load("trace", 200.0, jobs, mean_tokens, mean_new, cached_share * FOUND_SHARE)


def _means(jobs: Sequence[Job]) -> tuple[float, float, float]:
    ids = [one for job in jobs for one in job.prefix_ids]
    return mean(job.num_tokens for job in jobs), mean(job.num_new for job in jobs), 1 - len(set(ids)) / len(ids)


def seconds_on(load: Load, costs: Costs, num_sequences: int) -> tuple[float, float]:
    """How long a request keeps a whole P, and a whole D that decodes so many at once, on average."""
    on_p = costs.prefill_s(round(load.mean_tokens * (1 - load.cached_share)))
    return on_p, load.mean_new * costs.decode_s(num_sequences) / num_sequences
