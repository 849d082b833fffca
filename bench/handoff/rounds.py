"""What is measured in one round: each cell on each system in turn, and the first token with and without a hand-off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from bench.client import Client
from bench.handoff.systems import Baton, System
from bench.models.words import make_prompts

#: Tokens of a whole answer: P's, D's first, and enough others to know what a step of D takes.
NUM_TOKENS = 10


@dataclass(frozen=True)
class Cell:
    """Prompts of one length, ``at_once`` of them sent together. Rounds take turns with ``num_sets`` sets of prompts."""

    num_tokens: int
    at_once: int
    num_sets: int = 1

    @property
    def bursts(self) -> int:
        """How often a round sends ``at_once`` prompts. Single ones take less time, so it sends three of them."""
        return 3 if self.at_once == 1 else 1

    def prompts(self, number: int) -> list[list[list[int]]]:
        """The prompts of each burst of a round."""
        seed = f"{number % self.num_sets} {self.at_once}"
        flat = make_prompts(seed, self.bursts * self.at_once, self.num_tokens)
        return [flat[start : start + self.at_once] for start in range(0, len(flat), self.at_once)]


def make_cells(lengths: Sequence[int], at_once: Sequence[int]) -> list[Cell]:
    """All cells. The one that needs the most memory overwrites in each round all that D has read before, and so needs
    two sets of prompts itself.
    """
    largest = (max(lengths), max(at_once))
    return [Cell(length, num, 2 if (length, num) == largest else 1) for length in lengths for num in at_once]


@dataclass
class CellRun:
    """What one round found for a cell on one system: seconds."""

    prefill_s: float
    first_of_d_s: float
    step_s: float

    @property
    def hand_off_s(self) -> float:
        """From P's last prefill step to D's first token, less one step of D."""
        return self.first_of_d_s - self.prefill_s - self.step_s


@dataclass
class Results:
    """All rounds so far: by cell, then by system; and first tokens by length, with P and D and without."""

    cells: dict[Cell, dict[str, list[CellRun]]] = field(default_factory=dict)
    ttft: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, cell: Cell, system: str, run: CellRun) -> None:
        """Note one run."""
        self.cells.setdefault(cell, {}).setdefault(system, []).append(run)

    def hand_offs_ms(self, cell: Cell, system: str) -> list[float]:
        """The hand-offs of a cell on a system, one for each round; empty if it was not measured."""
        return [run.hand_off_s * 1e3 for run in self.cells.get(cell, {}).get(system, ())]


async def fill(client: Client, system: System, cells: Sequence[Cell]) -> None:
    """Have P compute all prompts once, so that it has them in its prefix cache, and D meet P."""
    for cell in cells:
        for number in range(cell.num_sets):
            for prompts in cell.prompts(number):
                await asyncio.gather(*(system.prefill(client, prompt) for prompt in prompts))
    for cell in cells:
        await run_cell(client, system, cell, 1)


async def run_cell(client: Client, system: System, cell: Cell, number: int) -> CellRun:
    """One round of a cell on a system. P has the prompts in its cache, so its prefill is short, and D has not."""
    runs = [await _burst(client, system, prompts) for prompts in cell.prompts(number)]
    return min(runs, key=lambda run: abs(run.hand_off_s - median(each.hand_off_s for each in runs)))


async def _burst(client: Client, system: System, prompts: Sequence[list[int]]) -> CellRun:
    """All prompts at once, first on P alone and then on both."""
    prefills_s = await asyncio.gather(*(_timed_prefill(client, system, prompt) for prompt in prompts))
    streams = await asyncio.gather(*(system.answer(client, prompt, NUM_TOKENS) for prompt in prompts))
    return CellRun(
        prefill_s=mean(prefills_s),
        first_of_d_s=mean(each.until_s(system.first_of_d) for each in streams),
        step_s=mean(gap_s for each in streams for gap_s in each.gaps_s(system.first_of_d)),
    )


async def _timed_prefill(client: Client, system: System, prompt: list[int]) -> float:
    sent_s = time.perf_counter()
    await system.prefill(client, prompt)
    return time.perf_counter() - sent_s


async def run_first_tokens(client: Client, baton: Baton, num_tokens: int, number: int) -> tuple[float, float]:
    """Seconds to the first token of prompts that nobody knows: on P and D, and on one worker. Medians of some."""
    some = 1 if num_tokens > 4000 else 3 if num_tokens > 1000 else 7
    pair: list[float] = []
    alone: list[float] = []
    for index, prompt in enumerate(make_prompts(f"first {number}", 2 * some, num_tokens)):
        pairs_turn = (index + number) % 2 == 0
        ask = baton.answer if pairs_turn else baton.answer_alone
        answered = await ask(client, prompt, 3)
        (pair if pairs_turn else alone).append(answered.until_s(0))
    return median(pair), median(alone)
