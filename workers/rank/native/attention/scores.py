"""The softmax of causal attention."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from baton_serve.workers.rank.native.compiled import compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS, weigh, write


@lru_cache(maxsize=4)
def causal_softmax(dtype):
    """``f(scores, sums, rows, keys, queries, first_query, window, scale)``: exponentials in place, and their sums.

    ``scores`` are ``[row, key]``. Row ``r`` is of query ``first_query + r % queries``, which attends to the ``window``
    keys that end with the key of the same number. The other scores become 0. ``sums`` gets the inverse of each row's
    sum.
    """
    return compiled(_causal_softmax, "elements floats int int int int int float", ELEMENTS[dtype])


def _causal_softmax(scores, sums, rows, keys, queries, first_query, window, scale):
    for row in range(rows):
        base = row * keys
        end = first_query + row % queries + 1
        start = max(0, end - window)
        sums[row] = np.float32(1.0) / weigh(scores, base + start, base + end, scale)
        for i in range(base, base + start):
            write(scores, i, np.float32(0.0))
        for i in range(base + end, base + keys):
            write(scores, i, np.float32(0.0))
