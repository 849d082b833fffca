"""Causal attention of several tokens by tiles: scores, their softmax, and sums of values, while they are in the cache.

A token's output does not depend on the tokens that are computed with it: its scores and its sums are added up in the
order of the numbers of a head, and of the keys.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit, types

from workers.rank.native.compiled import compiled
from workers.rank.native.numbers import ELEMENTS, as_words, lone_word_of, weigh, word_of, write
from workers.rank.native.tiles import (
    LANES,
    MAX_ROWS,
    WIDTH,
    ahead,
    as_floats,
    as_team,
    as_type_of,
    per_word,
    place_in_team,
    team_size,
    tile_of,
    value_of,
    wait_for_team,
)

#: Tokens whose scores are computed together, if there are so few keys that these fit into ``SCORE_BYTES``.
MAX_TOKENS = 64
#: About the bytes of scores of all heads that share keys. With keys and values they should stay in the nearer caches.
SCORE_BYTES = 256 * 1024
#: Keys whose values stay in the nearest cache while all rows take their turn.
CHUNK = 256

#: Constant of the programs: how many numbers of a type are multiplied at a time, as one word of 32 bits.
TOGETHER = 1


@lru_cache(maxsize=4)
def attend(dtype):
    """``f(queries, keys, values, outputs, scratch, tokens, keys, kv_heads, shared, head_dim, block_tokens, query_token,
    query_head, key_token, key_head, value_token, value_head, output_token, output_head, window, threads, scale,
    body)``: the attention of the last ``tokens`` of a context of so many keys.

    ``shared`` heads of a query have one head of keys; ``head_dim`` is a multiple of ``LANES``, and distances, which
    count numbers, are even for bfloat16. ``block_tokens`` are computed together, and ``scratch`` has room for
    ``scratch_floats`` float32: see the functions of these names. ``threads`` are those of torch. ``scale`` has the bits
    of a float32; ``body`` is the address of ``team_body(dtype)``.
    """
    kinds = "elements elements elements elements floats" + 18 * " int"
    return compiled(_attend, kinds, ELEMENTS[dtype], TOGETHER=per_word(dtype))


@lru_cache(maxsize=4)
def team_body(dtype):
    """What each thread of ``attend`` computes; its argument are the addresses and numbers of the whole."""
    return compiled(_team_body, "elements", types.CPointer(ELEMENTS[dtype]), TOGETHER=per_word(dtype))


def block_tokens(num_tokens: int, num_keys: int, shared: int, threads: int) -> int:
    """How many tokens to compute together: a multiple of ``MAX_ROWS``, and so few that each thread has some."""
    fitting = min(MAX_TOKENS, SCORE_BYTES // (4 * shared * _padded(num_keys)), -(-num_tokens // threads))
    return max(1, -(-fitting // MAX_ROWS)) * MAX_ROWS


def scratch_floats(num_tokens: int, num_keys: int, shared: int, head_dim: int, threads: int) -> int:
    """The float32 for keys and values, which all threads share, and for scores, weights and sums of each thread."""
    rows = shared * block_tokens(num_tokens, num_keys, shared, threads)
    return 2 * _padded(num_keys) * head_dim + threads * rows * (2 * _padded(num_keys) + WIDTH + 1)


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
    block_tokens,
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
    whole = (
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
        block_tokens,
        query_token,
        query_head,
        key_token,
        key_head,
        value_token,
        value_head,
        output_token,
        output_head,
        window,
        scale,
    )
    as_team(body, threads, whole)


#: Where ``_team_body`` finds each of them.
(
    _QUERIES,
    _KEYS,
    _VALUES,
    _OUTPUTS,
    _SCRATCH,
    _TOKENS,
    _NUM_KEYS,
    _KV_HEADS,
    _SHARED,
    _HEAD_DIM,
    _BLOCK_TOKENS,
    _QUERY_TOKEN,
    _QUERY_HEAD,
    _KEY_TOKEN,
    _KEY_HEAD,
    _VALUE_TOKEN,
    _VALUE_HEAD,
    _OUTPUT_TOKEN,
    _OUTPUT_HEAD,
    _WINDOW,
    _SCALE,
) = range(21)

#: Tiles of rows and vectors. A few sizes, as each takes a tenth of a second to compile; but 8 rows of two vectors, as
#: additions to fewer sums wait for each other.
_tile1x1, _tile4x1 = tile_of(1, 1), tile_of(4, 1)
_tile1x2, _tile4x2, _tile8x2 = tile_of(1, 2), tile_of(4, 2), tile_of(8, 2)
_tile1x4, _tile4x4 = tile_of(1, 4), tile_of(4, 4)


def _team_body(whole):
    keys, values, scratch = whole[_KEYS], whole[_VALUES], as_floats(whole[_SCRATCH])
    tokens, num_keys = value_of(whole[_TOKENS]), value_of(whole[_NUM_KEYS])
    shared, head_dim = value_of(whole[_SHARED]), value_of(whole[_HEAD_DIM])
    block_tokens = value_of(whole[_BLOCK_TOKENS])
    threads, place = team_size(), place_in_team()
    padded = (num_keys + WIDTH - 1) // WIDTH * WIDTH
    laid_keys = as_type_of(keys, scratch)
    laid_values = as_type_of(keys, ahead(scratch, padded * head_dim))
    own = ahead(scratch, 2 * padded * head_dim + place * shared * block_tokens * (2 * padded + WIDTH + 1))
    blocks = padded // WIDTH
    first, end = blocks * place // threads * WIDTH, blocks * (place + 1) // threads * WIDTH
    for head in range(value_of(whole[_KV_HEADS])):
        here = ahead(keys, head * value_of(whole[_KEY_HEAD]))
        _lay_out_keys(here, laid_keys, first, end, num_keys, head_dim, value_of(whole[_KEY_TOKEN]), TOGETHER)
        here, distance = ahead(values, head * value_of(whole[_VALUE_HEAD])), value_of(whole[_VALUE_TOKEN])
        _lay_out_values(here, laid_values, first, end, num_keys, padded, head_dim, distance, TOGETHER)
        wait_for_team()
        # Later blocks see more keys, so each thread has some of all.
        for block in range(place, (tokens + block_tokens - 1) // block_tokens, threads):
            token = block * block_tokens
            _block(
                ahead(
                    whole[_QUERIES],
                    head * shared * value_of(whole[_QUERY_HEAD]) + token * value_of(whole[_QUERY_TOKEN]),
                ),
                laid_keys,
                laid_values,
                ahead(
                    whole[_OUTPUTS],
                    head * shared * value_of(whole[_OUTPUT_HEAD]) + token * value_of(whole[_OUTPUT_TOKEN]),
                ),
                own,
                min(block_tokens, tokens - token),
                num_keys - tokens + token,
                padded,
                shared,
                head_dim,
                block_tokens,
                value_of(whole[_QUERY_TOKEN]),
                value_of(whole[_QUERY_HEAD]),
                value_of(whole[_OUTPUT_TOKEN]),
                value_of(whole[_OUTPUT_HEAD]),
                value_of(whole[_WINDOW]),
                np.int32(value_of(whole[_SCALE])).view(np.float32),
                TOGETHER,
            )
        wait_for_team()  # the next head's keys take the place of these


@njit
def _block(
    queries,
    laid_keys,
    laid_values,
    outputs,
    scratch,
    count,
    position,
    padded,
    shared,
    head_dim,
    block_tokens,
    query_token,
    query_head,
    output_token,
    output_head,
    window,
    scale,
    together,
):
    """``count`` tokens from ``position`` on, for the heads that share one head of keys."""
    rows = shared * block_tokens
    scores, sums = scratch, ahead(scratch, 2 * rows * padded)
    inverses = ahead(sums, rows * WIDTH)
    # In float32 weights take the place of the scores.
    weights = as_type_of(laid_keys, ahead(scores, rows * padded * (together - 1)))
    # The scores of a row begin with the key ``begin``.
    begin = max(0, position + 1 - window) // WIDTH * WIDTH
    for head in range(shared):
        row = head * block_tokens
        line, into = ahead(scores, row * padded), ahead(weights, row * padded)
        _score(
            ahead(queries, head * query_head), laid_keys, line, count, position, begin, head_dim, query_token, padded
        )
        _weigh_rows(line, into, ahead(inverses, row), count, position, begin, padded, window, scale, together)
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
            target = ahead(outputs, head * output_head + column)
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
        token = 0
        while token < count:
            height = _height(count - token, WIDTH)
            if key < position + token + height:
                row, given = ahead(scores, token * padded + key - begin), ahead(queries, token * query_token)
                _sum(height, WIDTH, given, line, row, head_dim, query_token, padded, 1)
            token += height


@njit
def _weigh_rows(scores, weights, inverses, count, position, begin, padded, window, scale, together):
    """The weights of these scores, and one over the sum of each token's."""
    stop = (position + count + WIDTH - 1) // WIDTH * WIDTH - begin
    for token in range(count):
        end = position + token + 1
        line, into = ahead(scores, token * padded), ahead(weights, token * padded)
        inverses[token] = _softmax(line, into, max(0, end - window) - begin, end - begin, stop, scale, together)


@njit
def _add(columns, weights, sums, count, position, key, width, padded, together, at_first):
    """Add to ``sums`` ``[token, width]`` the values of the keys from ``key`` on, at most ``CHUNK`` of them."""
    token = 0
    while token < count:
        height = _height(count - token, width)
        end = (position + token + height + together - 1) // together * together
        size = min(CHUNK, end - key)
        if size > 0:
            given, total = ahead(weights, token * padded), ahead(sums, token * width)
            _sum(height, width, given, columns, total, size, padded, width, at_first)
        token += height


@njit
def _height(left, width):
    """The rows of a tile of this width, of so many that are left."""
    if left >= 8 and width == 2 * LANES:
        return 8
    return 4 if left >= 4 else 1


@njit
def _sum(height, width, inputs, columns, sums, size, by_input, by_sum, is_first):
    """A tile of this height and width that keeps its sums."""
    if width == WIDTH:
        if height == 4:
            _tile4x4(inputs, columns, inputs, inputs, sums, size, by_input, 0, by_sum, is_first, 0)
        else:
            _tile1x4(inputs, columns, inputs, inputs, sums, size, by_input, 0, by_sum, is_first, 0)
    elif width == 2 * LANES:
        if height == 8:
            _tile8x2(inputs, columns, inputs, inputs, sums, size, by_input, 0, by_sum, is_first, 0)
        elif height == 4:
            _tile4x2(inputs, columns, inputs, inputs, sums, size, by_input, 0, by_sum, is_first, 0)
        else:
            _tile1x2(inputs, columns, inputs, inputs, sums, size, by_input, 0, by_sum, is_first, 0)
    elif height == 4:
        _tile4x1(inputs, columns, inputs, inputs, sums, size, by_input, 0, by_sum, is_first, 0)
    else:
        _tile1x1(inputs, columns, inputs, inputs, sums, size, by_input, 0, by_sum, is_first, 0)


@njit
def _lay_out_keys(keys, laid, first, end, num_keys, head_dim, distance, together):
    """The keys from ``first`` to ``end`` as columns: ``[block, head_dim / together, WIDTH, together]``."""
    source, target = as_words(keys), as_words(laid)
    words, by_key = head_dim // together, distance // together
    for start in range(first, end, WIDTH):
        block = start * words
        for key in range(min(WIDTH, num_keys - start)):
            line = (start + key) * by_key
            for word in range(words):
                target[block + word * WIDTH + key] = source[line + word]
        for key in range(max(0, num_keys - start), WIDTH):
            for word in range(words):
                target[block + word * WIDTH + key] = 0


@njit
def _lay_out_values(values, laid, first, end, num_keys, padded, head_dim, distance, together):
    """Values in columns of as many numbers as a tile has: ``[column, key / together, width, together]``."""
    target = as_words(laid)
    column = 0
    while column < head_dim:
        width = _width(head_dim - column)
        base = column * padded // together
        for key in range(first, end, together):
            line, source = base + key // together * width, key * distance + column
            if key + together <= num_keys:
                for i in range(width):
                    target[line + i] = word_of(values, source + i, distance)
            elif key < num_keys:
                for i in range(width):
                    target[line + i] = lone_word_of(values, source + i)
            else:
                for i in range(width):
                    target[line + i] = 0
        column += width


@njit
def _softmax(scores, weights, start, end, stop, scale, together):
    """Weights of scores from ``start`` to ``end``, 0 for the others before ``stop``; returns one over their sum."""
    total = weigh(scores, start, end, scale)
    for i in range(start):
        scores[i] = np.float32(0.0)
    for i in range(end, stop):
        scores[i] = np.float32(0.0)
    if together > 1:
        for i in range(stop):
            write(weights, i, scores[i])
    return np.float32(1.0) / total
