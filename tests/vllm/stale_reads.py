"""Late reads: in each round D is held up until other prompts have the blocks. Then it reads some in time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field

from baton_serve.baton.processes.vllm.connectors import Connector
from bench.connector.pair import BLOCK_SIZE, Pair, PairShape, num_wrong, prompts

LEASE_DURATION_S = 6
NUM_BLOCKS = 40
#: Hand-offs of one round: together their prompts, of four blocks each, take nearly all blocks of P.
NUM_AT_ONCE = 8


def shape_with(connector: Connector, p_tp: int = 1, d_tp: int = 1) -> PairShape:
    """A P with few blocks and short leases. Without prefix caching, so that D reads all blocks and P writes all."""
    args = f"--max-model-len 1024 --max-num-seqs 16 --block-size {BLOCK_SIZE} --no-enable-prefix-caching"
    few = f"--num-gpu-blocks-override {NUM_BLOCKS}"
    return PairShape(connector, LEASE_DURATION_S, args, p_args=few, p_tp=p_tp, d_tp=d_tp)


@dataclass
class Result:
    """What became of the hand-offs with one connector."""

    num_late_wrong: int = 0
    num_on_time_wrong: int = 0
    #: The fence's verdicts on each, by name.
    late_checks: Counter[str] = field(default_factory=Counter)
    on_time_checks: Counter[str] = field(default_factory=Counter)


class StaleReads:
    """The rounds of one pair, which has the shape above."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._new_prompts = prompts(num_sentences=3)

    async def run(self, rounds: int) -> Result:
        """Each round has ``NUM_AT_ONCE`` hand-offs that D reads too late, and as many that it reads at once."""
        result = Result()
        for _ in range(rounds):
            before = await self._pair.checks()
            result.num_late_wrong += await self._late()
            between = await self._pair.checks()
            result.num_on_time_wrong += await self._on_time()
            result.late_checks.update(between - before)
            result.on_time_checks.update(await self._pair.checks() - between)
        return result

    async def _late(self) -> int:
        pair, asked = self._pair, self._prompts()
        right = [await pair.ask(pair.d, prompt) for prompt in asked]
        handed_off = await asyncio.gather(*map(pair.prefill, asked))
        with pair.d_stopped() as go_on:
            async with asyncio.TaskGroup() as group:
                answers = [
                    group.create_task(pair.ask(pair.d, prompt, params))
                    for prompt, params in zip(asked, handed_off, strict=True)
                ]
                await pair.until_p_is_free()
                await asyncio.gather(*(pair.ask(pair.p, prompt, max_tokens=1) for prompt in self._prompts()))
                go_on()
        return num_wrong([one.result() for one in answers], right)

    async def _on_time(self) -> int:
        pair, asked = self._pair, self._prompts()
        right = [await pair.ask(pair.d, prompt) for prompt in asked]
        return num_wrong(await asyncio.gather(*map(pair.hand_off, asked)), right)

    def _prompts(self) -> list[str]:
        return list(itertools.islice(self._new_prompts, NUM_AT_ONCE))
