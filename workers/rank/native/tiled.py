"""Causal attention of several tokens by tiles: scores, their softmax, and sums of values, while they are in the cache.

A token's output does not depend on the tokens that are computed with it: its scores and its sums are added up in the
order of the numbers of a head, and of the keys.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit, types

from workers.rank.native.compiled import compiled
from workers.rank.native.numbers import ELEMENTS, exponential, ordered, unordered, write
from workers.rank.native.tiles import (
    LANES,
    MAX_ROWS,
    WIDTH,
    ahead,
    as_pointer,
    as_team,
    fixed_tile_of,
    float_room_of,
    place_in_team,
    tile_of,
    value_of,
)

#: Tokens whose scores are computed together, if the keys are so few that these fit into ``SCORE_BYTES``.
MAX_TOKENS = 64
#: About the bytes of scores of all heads that share keys. With keys and values they should stay in the nearer caches.
SCORE_BYTES = 256 * 1024
#: Keys whose values stay in the nearest cache while all rows take their turn.
CHUNK = 256

#: Constants of the programs: whether numbers are bfloat16, and how many of them are multiplied at a time.
HALF, TOGETHER = 0, 1


@lru_cache(maxsize=4)
def attend(dtype):
    """``f(queries, keys, values, outputs, scratch, tokens, keys, kv_heads, shared, head_dim, block_tokens, by_scratch,
    query_token, query_head, key_token, key_head, value_token, value_head, output_token, output_head, window, threads,
    scale, part)``: the attention of the last ``tokens`` of a context of so many keys.

    ``shared`` heads of a query have one head of keys; ``head_dim`` is a multiple of ``LANES``. ``block_tokens`` are
    computed together, a multiple of ``MAX_ROWS``. ``scratch`` has room for ``by_scratch`` float32 for each thread, see
    ``scratch_floats``. ``scale`` has the bits of a float32; ``part`` is the address of ``part(dtype)``. Distances count
    numbers.
    """
    kinds = "elements elements elements elements floats" + 19 * " int"
    return compiled(_attend, kinds, ELEMENTS[dtype], **_constants(dtype))


@lru_cache(maxsize=4)
def part(dtype):
    """What each thread of ``attend`` computes; its argument are the addresses and numbers of the whole."""
    return compiled(_part, "elements", types.CPointer(ELEMENTS[dtype]), **_constants(dtype))


def _constants(dtype):
    is_half = dtype.itemsize == 2
    return {"HALF": int(is_half), "TOGETHER": 2 if is_half else 1}


def block_tokens(num_keys: int, shared: int) -> int:
    """How many tokens to compute together."""
    fitting = SCORE_BYTES // (4 * shared * _padded(num_keys))
    return max(MAX_ROWS, min(MAX_TOKENS, fitting // MAX_ROWS * MAX_ROWS))


def scratch_floats(num_keys: int, shared: int, head_dim: int) -> int:
    """The float32 that a thread needs: keys and values, scores, weights, sums and their inverses."""
    rows = shared * block_tokens(num_keys, shared)
    return 2 * _padded(num_keys) * head_dim + rows * (2 * _padded(num_keys) + WIDTH + 1)


def _padded(num_keys: int) -> int:
    return -(-num_keys // WIDTH) * WIDTH


def _attend(
    queries,
    keys,
    values,
    outputs,
    scratch,
    tokens,
    num_keys,
    kv_heads,
    shared,
    head_dim,
    together,
    by_scratch,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    output_token,
    output_head,
    window,
    threads,
    scale,
    body,
):
    numbers = (
        value_of(queries),
        value_of(keys),
        value_of(values),
        value_of(outputs),
        value_of(scratch),
        tokens,
        num_keys,
        kv_heads,
        shared,
        head_dim,
        together,
        by_scratch,
        query_token,
        query_head,
        key_token,
        key_head,
        value_token,
        value_head,
        output_token,
        output_head,
        window,
        min(threads, kv_heads),
        scale,
    )
    as_team(body, min(threads, kv_heads), numbers)


def _part(numbers):
    threads, place, kv_heads = value_of(numbers[21]), place_in_team(), value_of(numbers[7])
    scratch = ahead(as_pointer(value_of(numbers[4]), _no_floats()), place * value_of(numbers[11]))
    scale = np.int32(value_of(numbers[22])).view(np.float32)
    for head in range(kv_heads * place // threads, kv_heads * (place + 1) // threads):
        _head(
            ahead(numbers[0], head * value_of(numbers[8]) * value_of(numbers[13])),
            ahead(numbers[1], head * value_of(numbers[15])),
            ahead(numbers[2], head * value_of(numbers[17])),
            ahead(numbers[3], head * value_of(numbers[8]) * value_of(numbers[19])),
            scratch,
            value_of(numbers[5]),
            value_of(numbers[6]),
            value_of(numbers[8]),
            value_of(numbers[9]),
            value_of(numbers[10]),
            value_of(numbers[12]),
            value_of(numbers[13]),
            value_of(numbers[14]),
            value_of(numbers[16]),
            value_of(numbers[18]),
            value_of(numbers[19]),
            value_of(numbers[20]),
            scale,
            HALF,
            TOGETHER,
        )


_no_floats = float_room_of(1)
_tile1, _tile2, _tile4 = (tile_of(num_vectors) for num_vectors in (1, 2, 4))
#: As many sums as the widest tile has: with fewer, additions wait for each other.
_tile2_of_8 = fixed_tile_of(8, 2)


@njit
def _head(
    queries,
    keys,
    values,
    outputs,
    scratch,
    tokens,
    num_keys,
    shared,
    head_dim,
    block_tokens,
    query_token,
    query_head,
    key_token,
    value_token,
    output_token,
    output_head,
    window,
    scale,
    is_half,
    together,
):
    """The heads that share one head of keys. ``together``: numbers that are multiplied at a time."""
    padded = (num_keys + WIDTH - 1) // WIDTH * WIDTH
    rows = shared * block_tokens
    laid_keys = as_pointer(value_of(scratch), keys)
    laid_values = as_pointer(value_of(ahead(scratch, padded * head_dim)), keys)
    scores = ahead(scratch, 2 * padded * head_dim)
    sums = ahead(scores, 2 * rows * padded)
    inverses = ahead(sums, rows * WIDTH)
    # In float32 weights take the place of the scores.
    weights = as_pointer(value_of(ahead(scores, rows * padded * is_half)), keys)
    _lay_out_keys(keys, laid_keys, num_keys, padded, head_dim, key_token, together)
    _lay_out_values(values, laid_values, num_keys, padded, head_dim, value_token, together)
    for first in range(0, tokens, block_tokens):
        count, position = min(block_tokens, tokens - first), num_keys - tokens + first
        # The scores of a row begin with the key ``begin``.
        begin = max(0, position + 1 - window) // WIDTH * WIDTH
        given = ahead(queries, first * query_token)
        for head in range(shared):
            row = head * block_tokens
            line, into = ahead(scores, row * padded), ahead(weights, row * padded)
            _score(
                ahead(given, head * query_head), laid_keys, line, count, position, begin, head_dim, query_token, padded
            )
            _weigh(line, into, ahead(inverses, row), count, position, begin, padded, window, scale, is_half)
        column = 0
        while column < head_dim:
            width = _width(head_dim - column)
            columns = ahead(laid_values, column * padded)
            for key in range(begin, position + count, CHUNK):
                for head in range(shared):
                    row = head * block_tokens
                    into, total = ahead(weights, row * padded + key - begin), ahead(sums, row * width)
                    line, at_first = ahead(columns, key * width), np.int64(key == begin)
                    _add(line, into, total, count, position, key, width, padded, together, at_first)
            for head in range(shared):
                target = ahead(outputs, head * output_head + first * output_token + column)
                for token in range(count):
                    row = head * block_tokens + token
                    for i in range(width):
                        write(target, token * output_token + i, sums[row * width + i] * inverses[row])
            column += width


@njit
def _width(left):
    """The numbers of a tile, of so many that are left."""
    if left >= WIDTH:
        return WIDTH
    return 2 * LANES if left >= 2 * LANES else LANES


@njit
def _score(queries, columns, scores, count, position, begin, head_dim, query_token, padded):
    """The scores ``[token, key]`` of one head, of ``count`` tokens from ``position`` on."""
    for key in range(begin, position + count, WIDTH):
        line = ahead(columns, key * head_dim)
        for token in range(0, count, MAX_ROWS):
            height = min(MAX_ROWS, count - token)
            if key < position + token + height:
                row, given = ahead(scores, token * padded + key - begin), ahead(queries, token * query_token)
                _tile4(height, given, line, columns, columns, row, head_dim, query_token, 0, padded, 1, 0)


@njit
def _weigh(scores, weights, inverses, count, position, begin, padded, window, scale, is_half):
    """The weights of these scores, and one over the sum of each token's."""
    stop = (position + count + WIDTH - 1) // WIDTH * WIDTH - begin
    for token in range(count):
        end = position + token + 1
        line, into = ahead(scores, token * padded), ahead(weights, token * padded)
        inverses[token] = _softmax(line, into, max(0, end - window) - begin, end - begin, stop, scale, is_half)


@njit
def _add(columns, weights, sums, count, position, key, width, padded, together, at_first):
    """Add to ``sums`` ``[token, width]`` the values of the keys from ``key`` on, at most ``CHUNK`` of them."""
    token = 0
    while token < count:
        height = min(MAX_ROWS, count - token)
        if width == 2 * LANES and count - token >= 8:
            height = 8
        end = (position + token + height + together - 1) // together * together
        size = min(CHUNK, end - key)
        if size > 0:
            given, total = ahead(weights, token * padded), ahead(sums, token * width)
            if width == WIDTH:
                _tile4(height, given, columns, columns, columns, total, size, padded, 0, width, at_first, 0)
            elif height == 8:
                _tile2_of_8(given, columns, columns, columns, total, size, padded, 0, width, at_first, 0)
            elif width == 2 * LANES:
                _tile2(height, given, columns, columns, columns, total, size, padded, 0, width, at_first, 0)
            else:
                _tile1(height, given, columns, columns, columns, total, size, padded, 0, width, at_first, 0)
        token += height


@njit
def _lay_out_keys(keys, laid, num_keys, padded, head_dim, distance, together):
    """Keys as columns: ``[block, head_dim / together, WIDTH, together]``."""
    for first in range(0, padded, WIDTH):
        for i in range(head_dim):
            line = first * head_dim + i // together * together * WIDTH + i % together
            for key in range(min(WIDTH, num_keys - first)):
                laid[line + key * together] = keys[(first + key) * distance + i]
            for key in range(max(0, num_keys - first), WIDTH):
                laid[line + key * together] = 0


@njit
def _lay_out_values(values, laid, num_keys, padded, head_dim, distance, together):
    """Values in columns of as many numbers as a tile has: ``[column, key / together, width, together]``."""
    column = 0
    while column < head_dim:
        width = _width(head_dim - column)
        base = column * padded
        for key in range(num_keys):
            line = base + key // together * together * width + key % together
            for i in range(width):
                laid[line + i * together] = values[key * distance + column + i]
        for key in range(num_keys, padded):
            line = base + key // together * together * width + key % together
            for i in range(width):
                laid[line + i * together] = 0
        column += width


@njit
def _softmax(scores, weights, start, end, stop, scale, is_half):
    """Weights of scores from ``start`` to ``end``, 0 for the others before ``stop``; returns one over their sum."""
    most = np.int32(-(2**31))
    for i in range(start, end):
        most = np.int32(max(most, ordered(scores[i])))
    largest = unordered(most)
    total = np.float32(0.0)
    if is_half:
        for i in range(start, end):
            power = exponential((scores[i] - largest) * scale)
            total += power
            write(weights, i, power)
        for i in range(start):
            write(weights, i, np.float32(0.0))
        for i in range(end, stop):
            write(weights, i, np.float32(0.0))
    else:
        for i in range(start, end):
            power = exponential((scores[i] - largest) * scale)
            total += power
            scores[i] = power
        for i in range(start):
            scores[i] = np.float32(0.0)
        for i in range(end, stop):
            scores[i] = np.float32(0.0)
    return np.float32(1.0) / total
