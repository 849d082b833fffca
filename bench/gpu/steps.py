"""Decode steps of so many sequences with so long a context, and steps that compute a chunk of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from baton_serve.core.protocol.steps import NewSequence, Row, Step
from baton_serve.workers.rank.main import LoadedRank
from bench.steps import GREEDY, blocks_of, decode_ms, step_ms

#: Steps of one run, of which the first is not counted: it is told the sequences.
STEPS = 9


@dataclass
class Cell:
    """What was measured of one batch: by the name of the way, the milliseconds of a step in each run."""

    num_rows: int
    num_tokens: int
    steps_ms: dict[str, list[float]] = field(default_factory=dict)


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


def measure_chunks(ranks: Mapping[str, LoadedRank], chunks: Sequence[Chunk], runs: int) -> None:
    """Fill the chunks, in turns. Each rank has room for the longest."""
    for chunk in chunks:
        _in_turns(ranks, chunk.steps_ms, runs, partial(_chunk_ms, chunk=chunk))


def _chunk_ms(rank: LoadedRank, chunk: Chunk) -> float:
    """The median of some steps, each of which samples a token."""
    taken_ms = []
    for number in range(STEPS):
        started = [NewSequence(0, [7] * chunk.end, [], GREEDY, blocks_of(0, chunk.end))]
        rows = [Row(0, chunk.num_cached, chunk.num_tokens, [], sample=True)]
        taken_ms.append(step_ms(rank, Step(number, [], [0] if number else [], started, rows)))
    rank.runner.execute(Step(STEPS, [], [0], [], []))
    return median(taken_ms)


def measure(ranks: Mapping[str, LoadedRank], cells: Sequence[Cell], runs: int) -> None:
    """Fill the cells, in turns. A cell for which a way has no blocks stays empty."""
    for cell in _fitting(ranks, cells):
        _in_turns(ranks, cell.steps_ms, runs, partial(_step_ms, cell=cell))


def _in_turns(
    ranks: Mapping[str, LoadedRank], steps_ms: dict[str, list[float]], runs: int, time_ms: Callable[[LoadedRank], float]
) -> None:
    for rank in ranks.values():
        # The first time, Triton compiles and memory is allocated.
        time_ms(rank)
    for _ in range(runs):
        for name, rank in ranks.items():
            steps_ms.setdefault(name, []).append(time_ms(rank))


def _fitting(ranks: Mapping[str, LoadedRank], cells: Sequence[Cell]) -> Iterator[Cell]:
    for cell in cells:
        needed = cell.num_rows * len(blocks_of(0, cell.num_tokens + STEPS))
        sizes = [rank.ready for rank in ranks.values()]
        if all(one.num_blocks >= needed and one.max_model_len >= cell.num_tokens + STEPS for one in sizes):
            yield cell


def _step_ms(rank: LoadedRank, cell: Cell) -> float:
    """The median of some steps. No two sequences share a block."""
    tables = [blocks_of(seq, cell.num_tokens + STEPS) for seq in range(cell.num_rows)]
    started = [NewSequence(seq, [7] * cell.num_tokens, [], GREEDY, table) for seq, table in enumerate(tables)]
    return median(decode_ms(rank, started, STEPS)[1:])
