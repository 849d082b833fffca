"""Attention of rows of one token by tiles; keys and values stay where they are in the paged cache.

A row's output is what ``tiled`` gives the token as part of a prompt, bit for bit: scores, softmax and sums of values
are added up in the same order. So it does not matter whether a token is decoded or computed once more, as those of a
stream are that goes on with another worker.
"""

from __future__ import annotations

from functools import lru_cache

from numba import njit
from numba.extending import register_jitable
from numpy import int64

from baton_serve.workers.rank.native.addresses import ahead, as_longs, as_type_of
from baton_serve.workers.rank.native.attention.layout import as_laid, find, lay_out_some_keys
from baton_serve.workers.rank.native.attention.softmax import put_rows, softmax, whole_tiles
from baton_serve.workers.rank.native.compiled import compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS, together
from baton_serve.workers.rank.native.sums import width_of
from baton_serve.workers.rank.native.team import as_team, team_for
from baton_serve.workers.rank.native.tiles import LANES, WIDTH, fetching_sums_of, placed_sums_of

#: Fewer numbers of keys than these a thread has read before another one has begun.
LEAST_FOR_TWO = 1 << 16


@lru_cache(maxsize=4)
def attend(dtype):
    """``f(cache, tables, ends, queries, outputs, scratch, rows, width, kv_heads, shared, head_dim, block_size,
    by_block, by_head, by_query, by_query_head, window, to_values, by_key, most_keys, threads, scale)``: the attention
    of rows of one token.

    ``cache`` is that of the layer. ``tables`` are ``[row, width]``, ``ends`` the lengths of the contexts, from 1 to
    ``most_keys``; outputs are ``[row, head, head_dim]``. ``shared`` heads of a query have one head of keys;
    ``head_dim`` is a multiple of ``LANES``. Distances count numbers.
    ``scratch`` has room for ``scratch_floats`` float32. ``threads`` are those of torch.
    """
    kinds = "elements integers integers elements elements floats" + 15 * " int" + " float"
    return compiled(_attend, kinds, ELEMENTS[dtype])


def scratch_floats(most_keys: int, shared: int, head_dim: int, threads: int, pair: int) -> int:
    """The float32 of all threads: some keys as columns, places of all, scores, weights and sums.

    ``pair``: how many weights are one word, see ``layout.laid_per_word``.
    """
    own: int = _own_floats(whole_tiles(most_keys), shared, head_dim, pair)
    return threads * own


@register_jitable
def _own_floats(padded, shared, head_dim, pair):
    # Weights that are float32 take the place of the scores; those that are bfloat16 are half as long.
    count = WIDTH * head_dim + 2 * (padded + WIDTH) + shared * (padded * (1 + pair) // 2 + head_dim + 1)
    return (count + LANES - 1) // LANES * LANES


def _attend(
    cache,
    tables,
    ends,
    queries,
    outputs,
    scratch,
    rows,
    width,
    kv_heads,
    shared,
    head_dim,
    block_size,
    by_block,
    by_head,
    by_query,
    by_query_head,
    window,
    to_values,
    by_key,
    most_keys,
    threads,
    scale,
):
    num_keys = 0
    for row in range(rows):
        num_keys += min(int64(ends[row]), window)
    whole = (
        cache,
        tables,
        ends,
        queries,
        outputs,
        scratch,
        rows,
        width,
        kv_heads,
        shared,
        head_dim,
        block_size,
        by_block,
        by_head,
        by_query,
        by_query_head,
        window,
        to_values,
        by_key,
        most_keys,
        scale,
    )
    as_team(_share, team_for(threads, num_keys * kv_heads * head_dim, LEAST_FOR_TWO), whole)


@njit
def _share(
    place,
    threads,
    cache,
    tables,
    ends,
    queries,
    outputs,
    scratch,
    rows,
    width,
    kv_heads,
    shared,
    head_dim,
    block_size,
    by_block,
    by_head,
    by_query,
    by_query_head,
    window,
    to_values,
    by_key,
    most_keys,
    scale,
):
    """What one thread computes: every ``threads``-th head of keys, of all rows, from ``place`` on."""
    padded = whole_tiles(most_keys)
    own = ahead(scratch, place * _own_floats(padded, shared, head_dim, together(as_laid(cache, scratch))))
    for item in range(place, rows * kv_heads, threads):
        row, head = item // kv_heads, item % kv_heads
        _head(
            ahead(cache, head * by_head),
            ahead(tables, row * width),
            int64(ends[row]),
            ahead(queries, row * by_query + head * shared * by_query_head),
            ahead(outputs, item * shared * head_dim),
            own,
            padded,
            shared,
            head_dim,
            block_size,
            by_block,
            by_query_head,
            window,
            to_values,
            by_key,
            scale,
        )


@njit
def _head(
    keys,
    table,
    end,
    queries,
    outputs,
    scratch,
    padded,
    shared,
    head_dim,
    block_size,
    by_block,
    by_query_head,
    window,
    to_values,
    by_key,
    scale,
):
    """The heads of a row that share one head of keys, in a context of ``end`` tokens."""
    pair, values, start = together(as_laid(keys, scratch)), ahead(keys, to_values), max(0, end - window)
    laid, places = as_type_of(keys, scratch), as_longs(ahead(scratch, WIDTH * head_dim))
    scores = ahead(scratch, WIDTH * head_dim + 2 * (padded + WIDTH))
    # All of these begin with the key ``begin``.
    weights = as_laid(keys, ahead(scores, shared * padded * (pair - 1)))
    sums = ahead(scores, shared * padded * (1 + pair) // 2)
    begin = start // WIDTH * WIDTH
    num_keys, stop, inverses = end - begin, whole_tiles(end) - begin, ahead(sums, shared * head_dim)
    find(places, table, begin, stop + WIDTH, start, end, by_key, block_size, by_block)
    _score_keys(queries, keys, values, places, laid, scores, num_keys, padded, shared, head_dim, by_query_head)
    for head in range(shared):
        line, into = ahead(scores, head * padded), ahead(weights, head * padded)
        inverses[head] = softmax(line, into, start - begin, num_keys, stop, scale)
    _add_values(weights, values, places, sums, num_keys, padded, shared, head_dim)
    column = 0
    while column < head_dim:
        width, total = width_of(head_dim - column), ahead(sums, column * shared)
        put_rows(ahead(outputs, column), total, inverses, shared, width, head_dim)
        column += width


_scores1, _scores2, _scores4 = (fetching_sums_of(rows, WIDTH // LANES) for rows in (1, 2, 4))
_sums1x1, _sums2x1, _sums4x1 = placed_sums_of(1, 1), placed_sums_of(2, 1), placed_sums_of(4, 1)
_sums1x2, _sums2x2, _sums4x2 = placed_sums_of(1, 2), placed_sums_of(2, 2), placed_sums_of(4, 2)
_sums1x4, _sums2x4, _sums4x4 = placed_sums_of(1, 4), placed_sums_of(2, 4), placed_sums_of(4, 4)


@njit
def _score_keys(queries, keys, values, places, laid, scores, num_keys, padded, shared, head_dim, by_query_head):
    """Scores ``[head, key]``. Meanwhile the next keys are fetched, and values behind the last ones."""
    shift = 0
    while 2 * LANES * together(keys) << shift <= head_dim:
        shift += 1
    for first in range(0, num_keys, WIDTH):
        soon, source = ahead(places, first + WIDTH), keys
        if first + WIDTH >= num_keys:
            soon, source = places, values
        for some in range(0, min(WIDTH, num_keys - first), LANES):
            lay_out_some_keys(keys, ahead(places, first + some), laid, some, head_dim)
        head = 0
        while head < shared:
            height = _height(shared - head)
            given, into = ahead(queries, head * by_query_head), ahead(scores, head * padded + first)
            _score(height, given, laid, source, soon, shift, into, head_dim, by_query_head, padded)
            head += height


@njit
def _add_values(weights, values, places, sums, num_keys, padded, shared, head_dim):
    """Sums ``[column, head, width]`` of values."""
    pair = together(values)
    for first in range(0, num_keys, WIDTH):
        size, at_first = min(WIDTH, (num_keys - first + pair - 1) // pair * pair), int64(first == 0)
        here, column = ahead(places, first), 0
        while column < head_dim:
            width, total, columns = width_of(head_dim - column), ahead(sums, column * shared), ahead(values, column)
            head = 0
            while head < shared:
                height = _height(shared - head)
                given, into = ahead(weights, head * padded + first), ahead(total, head * width)
                _add(height, width, given, columns, here, into, size, padded, at_first)
                head += height
            column += width


@njit
def _height(left):
    """The heads of a tile, of so many that are left."""
    if left >= 4:
        return 4
    return 2 if left >= 2 else 1


@njit
def _score(height, queries, laid, source, soon, shift, scores, head_dim, by_query_head, by_score):
    """Scores of ``WIDTH`` keys for so many heads."""
    if height == 4:
        _scores4(queries, laid, source, soon, shift, scores, head_dim, by_query_head, by_score, 1)
    elif height == 2:
        _scores2(queries, laid, source, soon, shift, scores, head_dim, by_query_head, by_score, 1)
    else:
        _scores1(queries, laid, source, soon, shift, scores, head_dim, by_query_head, by_score, 1)


@njit
def _add(height, width, weights, values, places, sums, size, by_weight, is_first):
    """Sums of values for so many heads; fetches those that come ``WIDTH`` keys later."""
    soon = ahead(places, WIDTH)
    if width == WIDTH:
        if height == 4:
            _sums4x4(weights, values, places, soon, sums, size, by_weight, width, is_first)
        elif height == 2:
            _sums2x4(weights, values, places, soon, sums, size, by_weight, width, is_first)
        else:
            _sums1x4(weights, values, places, soon, sums, size, by_weight, width, is_first)
    elif width == 2 * LANES:
        if height == 4:
            _sums4x2(weights, values, places, soon, sums, size, by_weight, width, is_first)
        elif height == 2:
            _sums2x2(weights, values, places, soon, sums, size, by_weight, width, is_first)
        else:
            _sums1x2(weights, values, places, soon, sums, size, by_weight, width, is_first)
    elif height == 4:
        _sums4x1(weights, values, places, soon, sums, size, by_weight, width, is_first)
    elif height == 2:
        _sums2x1(weights, values, places, soon, sums, size, by_weight, width, is_first)
    else:
        _sums1x1(weights, values, places, soon, sums, size, by_weight, width, is_first)
