"""Decode steps of so many sequences with so long a context, and steps that compute a chunk of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from baton_serve.core.protocol.steps import NewSequence, Row, SamplingParams, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from baton_serve.workers.rank.main import LoadedRank

#: Steps of one run, of which the first is not counted: it is told the sequences.
STEPS = 9
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Cell:
    """What was measured of one batch: by the name of the way, the milliseconds of a step in each run."""

    num_rows: int
    num_tokens: int
    steps_ms: dict[str, list[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.num_rows} after {self.num_tokens:,}"

    def blocks_per_row(self, block_size: int) -> int:
        """Blocks that a row has at the end of a run."""
        return -(-(self.num_tokens + STEPS) // block_size)


@dataclass
class Chunk:
    """What was measured of one chunk of a prompt, behind ``num_cached`` tokens of the cache: as in ``Cell``."""

    num_tokens: int
    num_cached: int
    steps_ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The context length after the chunk."""
        return self.num_cached + self.num_tokens


def measure_chunks(ranks: Mapping[str, LoadedRank], chunks: Sequence[Chunk], runs: int, block_size: int) -> None:
    """Fill the chunks, in turns. Each rank has room for the longest."""
    for chunk in chunks:
        _in_turns(ranks, chunk.steps_ms, runs, partial(_chunk_ms, chunk=chunk, block_size=block_size))


def _chunk_ms(rank: LoadedRank, chunk: Chunk, block_size: int) -> float:
    """The median of some steps, each of which samples a token."""
    blocks = list(range(-(-chunk.end // block_size)))
    taken_ms = []
    for number in range(STEPS):
        started = [NewSequence(0, [7] * chunk.end, [], GREEDY, blocks)]
        rows = [Row(0, chunk.num_cached, chunk.num_tokens, [], sample=True)]
        taken_ms.append(rank.runner.execute(Step(number, [], [0] if number else [], started, rows)).seconds * 1e3)
    rank.runner.execute(Step(STEPS, [], [0], [], []))
    return median(taken_ms)


def measure(ranks: Mapping[str, LoadedRank], cells: Sequence[Cell], runs: int, block_size: int) -> None:
    """Fill the cells, in turns. A cell for which a way has no blocks stays empty."""
    for cell in _fitting(ranks, cells, block_size):
        _in_turns(ranks, cell.steps_ms, runs, partial(_step_ms, cell=cell, block_size=block_size))


def _in_turns(
    ranks: Mapping[str, LoadedRank], steps_ms: dict[str, list[float]], runs: int, time_ms: Callable[[LoadedRank], float]
) -> None:
    for rank in ranks.values():
        # The first time, Triton compiles and memory is allocated.
        time_ms(rank)
    for _ in range(runs):
        for name, rank in ranks.items():
            steps_ms.setdefault(name, []).append(time_ms(rank))


def _fitting(ranks: Mapping[str, LoadedRank], cells: Sequence[Cell], block_size: int) -> Iterator[Cell]:
    for cell in cells:
        needed = cell.num_rows * cell.blocks_per_row(block_size)
        sizes = [rank.ready for rank in ranks.values()]
        if all(one.num_blocks >= needed and one.max_model_len >= cell.num_tokens + STEPS for one in sizes):
            yield cell


def _step_ms(rank: LoadedRank, cell: Cell, block_size: int) -> float:
    """The median of some steps. What the blocks hold is of no interest; no two sequences share one."""
    taken_ms = []
    for number in range(STEPS):
        rows = [Row(seq, cell.num_tokens - 1 + number, 1, [], sample=True) for seq in range(cell.num_rows)]
        started = [] if number else _sequences(cell, block_size)
        taken_ms.append(rank.runner.execute(Step(number, [], [], started, rows)).seconds * 1e3)
    return median(taken_ms[1:])


def _sequences(cell: Cell, block_size: int) -> list[NewSequence]:
    width = cell.blocks_per_row(block_size)
    tables = [list(range(seq * width, (seq + 1) * width)) for seq in range(cell.num_rows)]
    return [NewSequence(seq, [7] * cell.num_tokens, [], GREEDY, table) for seq, table in enumerate(tables)]
