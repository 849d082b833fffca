"""How many programs of a GPU share the context of one row, so that a few rows of long context use the whole GPU."""

from __future__ import annotations

#: Programs for each multiprocessor: with two, one computes while the other waits for memory.
PROGRAMS_PER_PROCESSOR = 2
#: Sharing is worth its second kernel only if each program has as many keys.
MIN_KEYS = 256
MAX_SPLITS = 32


def num_splits(num_programs: int, max_end: int, num_processors: int) -> int:
    """A power of two, at most 32. ``num_programs`` there are without sharing; no row has more than ``max_end`` keys."""
    wanted = num_processors * PROGRAMS_PER_PROCESSOR // num_programs
    most = min(wanted, max_end // MIN_KEYS, MAX_SPLITS)
    return 1 << max(0, most.bit_length() - 1)
