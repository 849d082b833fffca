"""What one reader is asked and what it measures. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

#: Where both processes have their pieces.
HOST, GPU = "host", "gpu"
#: Reads of at most so many blocks show what a read costs whatever its size.
MAX_SMALL_BLOCKS = 16


class Case(msgspec.Struct, frozen=True):
    """What one reader measures: pieces of one size over one transport."""

    #: ``UCX_TLS``, or an empty string: UCX chooses.
    tls: str
    piece_bytes: int
    #: Blocks in one read, in rising order.
    counts: list[int]
    num_runs: int
    #: Memory from which the pieces of a read are drawn.
    source_bytes: int
    #: ``HOST`` or ``GPU``.
    memory: str = HOST


class Sample(msgspec.Struct, frozen=True):
    """Median seconds of some reads of ``num_blocks`` blocks and of copies of as many pieces, made in turn.

    ``fenced_s`` and ``unfenced_s`` last from the command to the report; ``thread_s`` is the part of ``fenced_s`` from
    the moment in which the agent's thread has the command until the fence is passed.
    """

    num_blocks: int
    copy_s: float
    fenced_s: float
    unfenced_s: float
    thread_s: float


class Findings(msgspec.Struct, frozen=True):
    """All samples of a case: ``runs[i]`` are those of one run, one for each count."""

    case: Case
    #: Whether the kernel let the reader read the memory of the other process. True for memory of a GPU, which it does
    #: not guard.
    can_read: bool
    runs: list[list[Sample]]

    @property
    def largest(self) -> list[Sample]:
        """The samples of the largest count, one for each run."""
        return [run[-1] for run in self.runs]

    def ratios(self, field: str) -> list[float]:
        """How fast the largest reads are beside plain copies; 1 is as fast. ``fenced_s``, or ``unfenced_s``."""
        return [sample.copy_s / getattr(sample, field) for sample in self.largest]

    def fixed_us(self, field: str) -> list[float]:
        """For each run: microseconds of a read of no bytes, by a straight line through the small reads."""
        return [1e6 * intercept(list(_small(run, field))) for run in self.runs]


def intercept(points: list[tuple[float, float]]) -> float:
    """Where the straight line through ``(x, y)`` meets x = 0. Raises ValueError with fewer than two points."""
    if len(points) < 2:
        raise ValueError("a line needs two points")
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[1])


def _small(run: list[Sample], field: str) -> Iterator[tuple[float, float]]:
    for sample in run:
        if sample.num_blocks <= MAX_SMALL_BLOCKS:
            yield sample.num_blocks, getattr(sample, field)
