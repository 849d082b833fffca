"""Random bits for the tokens that can be drawn."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from baton_serve.workers.rank.native.compiled import compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS


@lru_cache(maxsize=4)
def bits(dtype):
    """``f(scores, starts, places, bits, count, rows, size)``: SplitMix64 (see ``sampling/noise``), as 64-bit integers.

    ``scores`` are ``[row, size]``, and ``starts`` has where the generator starts for each row. ``places`` gets the
    indices of the scores that are not -inf, ``bits`` the number that belongs to each, and ``count`` how many there are.
    Both have room for all scores.
    """
    return compiled(_bits, "elements indices indices indices indices int int", ELEMENTS[dtype])


def _bits(scores, starts, places, bits, count, rows, size):
    found = 0
    for row in range(rows):
        state = np.uint64(starts[row])
        for place in range(row * size, (row + 1) * size):
            state += np.uint64(0x9E3779B97F4A7C15)
            # Without a branch, which a processor could not foresee: the next token overwrites what is not wanted.
            places[found] = place
            bits[found] = np.int64(state)
            found += scores[place] != np.float32(-np.inf)
    for i in range(found):
        mixed = np.uint64(bits[i])
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits[i] = np.int64(mixed ^ (mixed >> np.uint64(31)))
    count[0] = found
