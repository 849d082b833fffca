"""Causal attention of several tokens by tiles: scores, their softmax, and sums of values, while they are in the cache.

A token's output does not depend on the tokens that are computed with it: its scores and its sums are added up in the
order of the numbers of a head, and of the keys.
"""

from __future__ import annotations

from functools import lru_cache

from numba import njit
from numba.extending import register_jitable
from numpy import int64

from baton_serve.workers.rank.native.addresses import ahead, as_type_of, long_room_of
from baton_serve.workers.rank.native.attention.layout import (
    as_laid,
    find,
    lay_out_keys,
    lay_out_queries,
    lay_out_values,
)
from baton_serve.workers.rank.native.attention.softmax import put_rows, softmax, whole_tiles
from baton_serve.workers.rank.native.compiled import compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS, together
from baton_serve.workers.rank.native.sums import add, height_of, width_of
from baton_serve.workers.rank.native.team import as_team, wait_for_team
from baton_serve.workers.rank.native.tiles import LANES, MAX_ROWS, WIDTH

#: Tokens whose scores are computed together, if there are so few keys that these fit into ``SCORE_BYTES``.
MAX_TOKENS = 64
#: About the bytes of scores of all heads that share keys. With keys and values they should stay in the nearer caches.
SCORE_BYTES = 256 * 1024
#: Keys whose values stay in the nearest cache while all rows take their turn.
CHUNK = 256


@lru_cache(maxsize=4)
def attend(dtype):
    """``f(queries, keys, values, outputs, scratch, table, tokens, keys, kv_heads, shared, head_dim, block_tokens,
    query_token, query_head, by_key, key_head, by_value, value_head, block_size, by_block, output_token, output_head,
    window, threads, scale)``: the attention of the last ``tokens`` of a context of so many keys.

    Keys and values are in blocks; ``table`` (int32) has the number of each. ``shared`` heads of a query have one head
    of keys; ``head_dim`` is a multiple of ``LANES``. Distances count numbers. ``block_tokens`` are computed together,
    and ``scratch`` has room for ``scratch_floats`` float32: see the functions of these names. ``threads`` are those of
    torch.
    """
    kinds = "elements elements elements elements floats integers" + 18 * " int" + " float"
    return compiled(_attend, kinds, ELEMENTS[dtype])


@register_jitable
def first_key(num_tokens, num_keys, window):
    """The first key that is looked at: a multiple of ``WIDTH``, so that sums are the same for any tokens."""
    return max(0, num_keys - num_tokens + 1 - window) // WIDTH * WIDTH


def block_tokens(num_tokens: int, num_keys: int, shared: int, threads: int) -> int:
    """How many tokens to compute together: a multiple of ``MAX_ROWS``, and so few that each thread has some.

    ``num_keys``: those from ``first_key`` on.
    """
    line: int = 4 * shared * whole_tiles(num_keys)
    fitting = min(MAX_TOKENS, SCORE_BYTES // line, -(-num_tokens // threads))
    return max(1, -(-fitting // MAX_ROWS)) * MAX_ROWS


def scratch_floats(num_tokens: int, num_keys: int, shared: int, head_dim: int, threads: int, pair: int) -> int:
    """The float32 for keys and values, which all threads share, and for scores, weights, sums and queries of each.

    ``num_keys``: those from ``first_key`` on. ``pair``: how many weights are one word, see ``layout.laid_per_word``.
    """
    padded: int = whole_tiles(num_keys)
    own: int = _own_floats(padded, shared, block_tokens(num_tokens, num_keys, shared, threads), head_dim, pair)
    return 2 * padded * head_dim + threads * own


@register_jitable
def _own_floats(padded, shared, block_tokens, head_dim, pair):
    # Weights that are float32 take the place of the scores; those that are bfloat16 are half as long. Queries are there
    # only if they are made float32.
    count = block_tokens * (shared * (padded * (1 + pair) // 2 + WIDTH + 1) + head_dim)
    return (count + LANES - 1) // LANES * LANES


def _attend(
    queries,
    keys,
    values,
    outputs,
    scratch,
    table,
    tokens,
    num_keys,
    kv_heads,
    shared,
    head_dim,
    block_tokens,
    query_token,
    query_head,
    by_key,
    key_head,
    by_value,
    value_head,
    block_size,
    by_block,
    output_token,
    output_head,
    window,
    threads,
    scale,
):
    whole = (
        queries,
        keys,
        values,
        outputs,
        scratch,
        table,
        tokens,
        num_keys,
        kv_heads,
        shared,
        head_dim,
        block_tokens,
        query_token,
        query_head,
        by_key,
        key_head,
        by_value,
        value_head,
        block_size,
        by_block,
        output_token,
        output_head,
        window,
        scale,
    )
    as_team(_share, threads, whole)


#: Where ``WIDTH`` keys, or their values, are.
_places = long_room_of(WIDTH)


@njit
def _share(
    place,
    threads,
    queries,
    keys,
    values,
    outputs,
    scratch,
    table,
    tokens,
    num_keys,
    kv_heads,
    shared,
    head_dim,
    block_tokens,
    query_token,
    query_head,
    by_key,
    key_head,
    by_value,
    value_head,
    block_size,
    by_block,
    output_token,
    output_head,
    window,
    scale,
):
    """What one thread computes."""
    begin, start = first_key(tokens, num_keys, window), max(0, num_keys - tokens + 1 - window)
    # From here on keys are counted from ``begin`` on.
    seen = num_keys - begin
    places, padded = _places(), whole_tiles(seen)
    laid_keys = as_laid(keys, scratch)
    laid_values = as_laid(keys, ahead(scratch, padded * head_dim))
    own_floats = _own_floats(padded, shared, block_tokens, head_dim, together(laid_keys))
    own = ahead(scratch, 2 * padded * head_dim + place * own_floats)
    blocks = padded // WIDTH
    first, end = blocks * place // threads * WIDTH, blocks * (place + 1) // threads * WIDTH
    for head in range(kv_heads):
        these, those = ahead(keys, head * key_head), ahead(values, head * value_head)
        for key in range(first, end, WIDTH):
            count = min(WIDTH, seen - key)
            find(places, table, begin + key, WIDTH, start, num_keys, by_key, block_size, by_block)
            lay_out_keys(these, places, count, ahead(laid_keys, key * head_dim), head_dim)
            find(places, table, begin + key, WIDTH, start, num_keys, by_value, block_size, by_block)
            lay_out_values(those, places, count, laid_values, key, padded, head_dim)
        wait_for_team()
        given, found = ahead(queries, head * shared * query_head), ahead(outputs, head * shared * output_head)
        # Later blocks see more keys, so each thread has some of all.
        for block in range(place, (tokens + block_tokens - 1) // block_tokens, threads):
            token = block * block_tokens
            _block(
                ahead(given, token * query_token),
                laid_keys,
                laid_values,
                ahead(found, token * output_token),
                own,
                min(block_tokens, tokens - token),
                seen - tokens + token,
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
):
    """``count`` tokens from ``position`` on, for the heads that share one head of keys."""
    rows = shared * block_tokens
    pair = together(laid_keys)
    scores, sums = scratch, ahead(scratch, rows * padded * (1 + pair) // 2)
    inverses = ahead(sums, rows * WIDTH)
    room = ahead(inverses, rows)
    weights = as_type_of(laid_keys, ahead(scores, rows * padded * (pair - 1)))
    # The scores of a row begin with the key ``begin``.
    begin = max(0, position + 1 - window) // WIDTH * WIDTH
    for head in range(shared):
        row = head * block_tokens
        line, into = ahead(scores, row * padded), ahead(weights, row * padded)
        given, by_given = lay_out_queries(ahead(queries, head * query_head), room, count, head_dim, query_token)
        _score(given, laid_keys, line, count, position, begin, head_dim, by_given, padded)
        _weigh_rows(line, into, ahead(inverses, row), count, position, begin, padded, window, scale)
    column = 0
    while column < head_dim:
        width = width_of(head_dim - column)
        columns = ahead(laid_values, column * padded)
        for key in range(begin, position + count, CHUNK):
            for head in range(shared):
                row = head * block_tokens
                into, total = ahead(weights, row * padded + key - begin), ahead(sums, row * width)
                line, at_first = ahead(columns, key * width), int64(key == begin)
                _add(line, into, total, count, position, key, width, padded, at_first)
        for head in range(shared):
            row = head * block_tokens
            target = ahead(outputs, head * output_head + column)
            put_rows(target, ahead(sums, row * width), ahead(inverses, row), count, width, output_token)
        column += width


@njit
def _score(queries, columns, scores, count, position, begin, head_dim, query_token, padded):
    """The scores ``[token, key]`` of one head, of ``count`` tokens from ``position`` on."""
    for key in range(begin, position + count, WIDTH):
        line = ahead(columns, key * head_dim)
        token = 0
        while token < count:
            height = height_of(count - token, WIDTH)
            if key < position + token + height:
                row, given = ahead(scores, token * padded + key - begin), ahead(queries, token * query_token)
                add(height, WIDTH, given, line, row, head_dim, query_token, padded, 1)
            token += height


@njit
def _weigh_rows(scores, weights, inverses, count, position, begin, padded, window, scale):
    """The weights of these scores, and one over the sum of each token's."""
    stop = whole_tiles(position + count) - begin
    for token in range(count):
        end = position + token + 1
        line, into = ahead(scores, token * padded), ahead(weights, token * padded)
        inverses[token] = softmax(line, into, max(0, end - window) - begin, end - begin, stop, scale)


@njit
def _add(columns, weights, sums, count, position, key, width, padded, at_first):
    """Add to ``sums`` ``[token, width]`` the values of the keys from ``key`` on, at most ``CHUNK`` of them."""
    token, pair = 0, together(weights)
    while token < count:
        height = height_of(count - token, width)
        end = (position + token + height + pair - 1) // pair * pair
        size = min(CHUNK, end - key)
        if size > 0:
            given, total = ahead(weights, token * padded), ahead(sums, token * width)
            add(height, width, given, columns, total, size, padded, width, at_first)
        token += height
