"""What Baton's connector costs beside vLLM's own: both pairs serve, and take turns."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from bench.connector.pair import BLOCK_SIZE, PairShape, prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton_serve.baton.processes.vllm.connectors import Connector
    from bench.connector.pair import Pair

#: Hand-offs of one round, one after the other, and those that run at the same time, for the throughput.
NUM_ALONE = 12
NUM_AT_ONCE = 24
NUM_TOKENS = 32


def cost_shape(connector: Connector) -> PairShape:
    """Long leases, and nothing cached, so that every hand-off is prefilled and read."""
    args = f"--max-model-len 1024 --max-num-seqs 32 --block-size {BLOCK_SIZE} --no-enable-prefix-caching"
    return PairShape(connector, lease_duration_s=60, args=args)


@dataclass
class Costs:
    """What one connector has taken, a value for each round."""

    #: From D's request to its first event, seconds: the median of the round.
    hand_off_s: list[float] = field(default_factory=list)
    #: From P's request to D's first event, seconds: the median of the round.
    ttft_s: list[float] = field(default_factory=list)
    #: Of all hand-offs at the same time, tokens of D in a second of the whole.
    tokens_per_s: list[float] = field(default_factory=list)


async def measure(pairs: Mapping[str, Pair], rounds: int) -> dict[str, Costs]:
    """Each round measures every pair; the order is reversed each time. One round before them is not counted."""
    costs = {name: Costs() for name in pairs}
    asked = prompts(num_sentences=12)
    for number in range(rounds + 1):
        for name in list(pairs)[:: 1 if number % 2 else -1]:
            await _round(pairs[name], asked, costs[name] if number else Costs())
    return costs


def ratios(costs: Mapping[str, Costs], ours: str, stock: str, values: Callable[[Costs], list[float]]) -> list[float]:
    """Ours over stock's, a ratio for each round."""
    return [one / other for one, other in zip(values(costs[ours]), values(costs[stock]), strict=True)]


async def _round(pair: Pair, asked: Iterator[str], costs: Costs) -> None:
    alone = [await _timed(pair, next(asked)) for _ in range(NUM_ALONE)]
    costs.hand_off_s.append(median(hand_off_s for hand_off_s, _ in alone))
    costs.ttft_s.append(median(ttft_s for _, ttft_s in alone))
    chosen = list(itertools.islice(asked, NUM_AT_ONCE))
    begun_s = time.perf_counter()
    await asyncio.gather(*(pair.hand_off(prompt, max_tokens=NUM_TOKENS) for prompt in chosen))
    costs.tokens_per_s.append(NUM_AT_ONCE * NUM_TOKENS / (time.perf_counter() - begun_s))


async def _timed(pair: Pair, prompt: str) -> tuple[float, float]:
    """Seconds of the hand-off, and of the time to the first token."""
    begun_s = time.perf_counter()
    params = await pair.prefill(prompt)
    prefilled_s = time.perf_counter()
    await pair.first_event(prompt, params)
    ended_s = time.perf_counter()
    return ended_s - prefilled_s, ended_s - begun_s
