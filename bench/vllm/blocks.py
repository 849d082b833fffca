"""P's blocks over time, and those of them that nobody needed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Sample:
    """How many blocks P had in use at a time, seconds."""

    at_s: float
    used: float


@dataclass(frozen=True)
class Need:
    """A request that had a use for this many blocks of P from one time to another, seconds."""

    from_s: float
    to_s: float
    blocks: int


def blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)


def stranded(samples: Sequence[Sample], needs: Sequence[Need]) -> float:
    """Block-seconds of P that no request had a use for.

    At each sample this is what P had in use beyond the blocks of all requests whose clients still waited for them,
    and it counts until the next sample. Requests count with all their blocks, whether P had computed them yet or not,
    so the number is never too large by requests that wait before P.
    """
    return sum(_beyond(sample, needs) * (following.at_s - sample.at_s) for sample, following in pairwise(samples))


def _beyond(sample: Sample, needs: Sequence[Need]) -> float:
    needed = sum(need.blocks for need in needs if need.from_s <= sample.at_s < need.to_s)
    return max(0.0, sample.used - needed)


def free_after_s(samples: Sequence[Sample], from_s: float) -> float:
    """Seconds from ``from_s`` to the first sample after which P had nothing in use any more."""
    last_used_s = max((sample.at_s for sample in samples if sample.used > 0), default=from_s)
    return max(0.0, next((one.at_s for one in samples if one.at_s > last_used_s), last_used_s) - from_s)
