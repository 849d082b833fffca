"""Scores of banned tokens."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from baton_serve.workers.rank.native.compiled import compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS

_WORD_BITS = 32


@lru_cache(maxsize=4)
def ban(dtype):
    """``f(scores, words, outputs, rows, size, row_words)``: copies scores, with -inf for those whose bit is not set.

    ``scores`` and ``outputs`` are ``[row, size]``. The bits of a row are in ``row_words`` words of 32 bits, from the
    lowest on, and there are at least ``size`` of them.
    """
    return compiled(_ban, "elements integers elements int int int", ELEMENTS[dtype])


def _ban(scores, words, outputs, rows, size, row_words):
    for row in range(rows):
        first, first_word = row * size, row * row_words
        for word in range((size + _WORD_BITS - 1) // _WORD_BITS):
            bits = np.uint32(words[first_word + word])
            begin = first + word * _WORD_BITS
            end = min(begin + _WORD_BITS, first + size)
            if bits == np.uint32(0xFFFFFFFF):
                for i in range(begin, end):
                    outputs[i] = scores[i]
            elif bits == np.uint32(0):
                for i in range(begin, end):
                    outputs[i] = np.float32(-np.inf)
            else:
                for i in range(begin, end):
                    is_set = (bits >> np.uint32(i - begin)) & np.uint32(1)
                    outputs[i] = scores[i] if is_set else np.float32(-np.inf)
