"""The time of one decode step against the length of its context, in a rank of this process.

The cache has random numbers, as what a step takes does not depend on them: no long prompt has to be prefilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from baton_serve.core.protocol.steps import NewSequence
from baton_serve.workers.rank.main import LoadedRank
from bench.models.sized import MAX_POSITIONS, SIZES, model_folder
from bench.report.model import Line, Plot, Table
from bench.report.spread import number, spread
from bench.steps import BLOCK_SIZE, GREEDY, blocks_of, decode_ms, load_on_cpu

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
SIZE = SIZES["5M"]
FLOAT32_BYTES = 4
#: Steps of one run, of which the median counts.
STEPS = 7


@dataclass(frozen=True)
class Context:
    """Milliseconds of a step, one number for each run."""

    num_tokens: int
    steps_ms: list[float] = field(default_factory=list)

    @property
    def read_mb(self) -> float:
        """Megabytes of keys and values that the attention of one step reads."""
        head_dim = SIZE.hidden // SIZE.heads
        return self.num_tokens * SIZE.layers * SIZE.kv_heads * 2 * head_dim * FLOAT32_BYTES / 1e6


def measure(runs: int, lengths: Sequence[int] = LENGTHS) -> list[Context]:
    """Runs of all lengths, in turns, with one thread."""
    rank = load_on_cpu(model_folder(SIZE), MAX_POSITIONS // BLOCK_SIZE)
    found = [Context(length) for length in lengths]
    for _ in range(runs):
        for context in found:
            context.steps_ms.append(_step_ms(rank, context.num_tokens))
    return found


def _step_ms(rank: LoadedRank, num_tokens: int) -> float:
    """The median of a few steps that follow ``num_tokens``."""
    start = NewSequence(0, [7] * num_tokens, [], GREEDY, blocks_of(0, num_tokens + STEPS))
    return median(decode_ms(rank, [start], STEPS)[1:])


def table(contexts: Sequence[Context]) -> Table:
    """A row for each length. The last column stays the same where the time grows as the bytes do."""
    first = contexts[0]
    rows = []
    for context in contexts:
        grown_mb = context.read_mb - first.read_mb
        growth = [(ms - median(first.steps_ms)) / grown_mb for ms in context.steps_ms] if grown_mb else []
        rows.append([f"{context.num_tokens:,}", number(context.read_mb), spread(context.steps_ms), spread(growth)])
    columns = ["tokens in the context", "MB that attention reads", "ms per token", "ms per MB more than the first row"]
    return Table(f"One stream of the {SIZE.name} model, float32, one thread", columns, rows)


def plot(contexts: Sequence[Context]) -> Plot:
    """Time against bytes."""
    line = Line.of_runs("a decode step", {context.read_mb: context.steps_ms for context in contexts})
    title = f"Decoding after contexts of {contexts[0].num_tokens:,} to {contexts[-1].num_tokens:,} tokens"
    return Plot("engine-contexts", title, "MB that attention reads for one token", "ms per token", [line])
