"""Programs for each token by itself: norms, rotations, gates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workers.rank.native.compiled import compiled
from workers.rank.native.numbers import ELEMENTS, exponential, read, write


@lru_cache(maxsize=4)
def rms_norm(dtype):
    """``f(inputs, weight, outputs, rows, size, row_stride, eps)``: scales rows to a mean square of 1."""
    return compiled(_rms_norm, "elements elements elements int int int float", ELEMENTS[dtype])


def _rms_norm(inputs, weight, outputs, rows, size, stride, eps):
    for row in range(rows):
        first, target = row * stride, row * size
        total = np.float32(0.0)
        for i in range(size):
            number = read(inputs, first + i)
            total += number * number
        scale = np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)
        for i in range(size):
            write(outputs, target + i, read(inputs, first + i) * scale * read(weight, i))


@lru_cache(maxsize=4)
def rotate(dtype):
    """``f(heads, cos, sin, tokens, heads, head_dim, token_stride)``: rotates the heads of each token, in place."""
    return compiled(_rotate, "elements elements elements int int int int", ELEMENTS[dtype])


def _rotate(numbers, cosines, sines, tokens, heads, head_dim, stride):
    half = head_dim // 2
    for token in range(tokens):
        angle = token * head_dim
        for head in range(heads):
            first = token * stride + head * head_dim
            for i in range(half):
                low, high = read(numbers, first + i), read(numbers, first + half + i)
                write(numbers, first + i, low * read(cosines, angle + i) - high * read(sines, angle + i))
                write(
                    numbers,
                    first + half + i,
                    high * read(cosines, angle + half + i) + low * read(sines, angle + half + i),
                )


@lru_cache(maxsize=4)
def gate(dtype):
    """``f(product, outputs, tokens, size)``: of ``[tokens, 2 * size]``, SiLU of the first half times the second."""
    return compiled(_gate, "elements elements int int", ELEMENTS[dtype])


def _gate(product, outputs, tokens, size):
    for token in range(tokens):
        first, target = 2 * token * size, token * size
        for i in range(size):
            number = read(product, first + i)
            opened = number / (np.float32(1.0) + exponential(-number))
            write(outputs, target + i, opened * read(product, first + size + i))
