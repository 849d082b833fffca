"""Programs for each token by itself: norms, rotations, gates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from baton_serve.workers.rank.native.addresses import ahead
from baton_serve.workers.rank.native.compiled import as_written, compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS, exponential, fused, read, write
from baton_serve.workers.rank.native.team import as_team, team_for
from baton_serve.workers.rank.native.tiles import WIDTH, squares

#: With fewer numbers than these, one thread is done before a second one has begun.
LEAST_FOR_TWO = 1 << 16


@lru_cache(maxsize=4)
def rms_norm(dtype):
    """``f(inputs, weight, outputs, rows, size, eps, threads)``: scales rows to a mean square of 1."""
    return compiled(_rms_norm, "elements elements elements int int float int", ELEMENTS[dtype])


def _rms_norm(inputs, weight, outputs, rows, size, eps, threads):
    as_team(_norms, team_for(threads, rows * size, LEAST_FOR_TWO), (inputs, weight, outputs, rows, size, eps))


@as_written
def _norms(place, threads, inputs, weight, outputs, rows, size, eps):
    whole = size // WIDTH * WIDTH
    for row in range(rows * place // threads, rows * (place + 1) // threads):
        first = row * size
        total = squares(ahead(inputs, first), whole)
        for i in range(first + whole, first + size):
            total = fused(read(inputs, i), read(inputs, i), total)
        scale = np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)
        for i in range(size):
            write(outputs, first + i, read(inputs, first + i) * scale * read(weight, i))


@lru_cache(maxsize=4)
def rotate(dtype):
    """``f(heads, cos, sin, tokens, heads, head_dim, token_stride, threads)``: rotates heads of each token, in place."""
    return compiled(_rotate, "elements elements elements int int int int int", ELEMENTS[dtype])


def _rotate(numbers, cosines, sines, tokens, heads, head_dim, stride, threads):
    team = team_for(threads, tokens * heads * head_dim, LEAST_FOR_TWO)
    as_team(_rotations, team, (numbers, cosines, sines, tokens, heads, head_dim, stride))


@as_written
def _rotations(place, threads, numbers, cosines, sines, tokens, heads, head_dim, stride):
    half = head_dim // 2
    for token in range(tokens * place // threads, tokens * (place + 1) // threads):
        angle = token * head_dim
        for head in range(heads):
            first = token * stride + head * head_dim
            for i in range(half):
                low, high = read(numbers, first + i), read(numbers, first + half + i)
                turned = fused(low, read(cosines, angle + i), -high * read(sines, angle + i))
                write(numbers, first + i, turned)
                turned = fused(high, read(cosines, angle + half + i), low * read(sines, angle + half + i))
                write(numbers, first + half + i, turned)


@lru_cache(maxsize=4)
def gate(dtype):
    """``f(product, outputs, tokens, size, threads)``: of ``[tokens, 2 * size]``, SiLU of one half times the other."""
    return compiled(_gate, "elements elements int int int", ELEMENTS[dtype])


def _gate(product, outputs, tokens, size, threads):
    as_team(_gates, team_for(threads, tokens * size, LEAST_FOR_TWO), (product, outputs, tokens, size))


@as_written
def _gates(place, threads, product, outputs, tokens, size):
    for token in range(tokens * place // threads, tokens * (place + 1) // threads):
        first, target = 2 * token * size, token * size
        for i in range(size):
            number = read(product, first + i)
            opened = number / (np.float32(1.0) + exponential(-number))
            write(outputs, target + i, opened * read(product, first + size + i))
