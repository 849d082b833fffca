"""Attention of rows of one token where ``one_token`` cannot; ``cache/kv_cache.py`` says how the cache is laid out."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from baton_serve.workers.rank.native.addresses import fetch
from baton_serve.workers.rank.native.compiled import compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS, read, weigh, write

#: Constants of ``_decode``, for which ``decode`` has values: the numbers of a head, or 0 if that is no constant, and
#: those of a line of the processor's cache.
HEAD_DIM, LINE = 0, 0
#: For heads of a constant length the compiler leaves out what loops do for other lengths. But a loop of fewer numbers
#: than these it unrolls before it looks for vectors, and then it finds none.
LEAST_CONSTANT = 24
#: Numbers are fetched about this many lines before they are read.
LINES_AHEAD = 128


@lru_cache(maxsize=16)
def decode(dtype, head_dim):
    """``f(cache, tables, ends, queries, outputs, scratch, rows, width, kv_heads, shared, head_dim, block_size,
    by_block, by_head, by_query, by_query_head, window, scale)``: the attention of rows of one token, for heads of
    ``head_dim`` numbers.

    ``cache`` is that of the layer. ``tables`` are ``[row, width]``, ``ends`` the lengths of the contexts; outputs are
    ``[row, head, head_dim]``. ``shared`` heads of a query have one head of keys. ``scratch`` has room for
    ``shared * (width * block_size + 2 * head_dim)`` float32. Distances count numbers.
    """
    return compiled(
        _decode,
        "elements integers integers elements elements floats" + 11 * " int" + " float",
        ELEMENTS[dtype],
        HEAD_DIM=head_dim if head_dim >= LEAST_CONSTANT else 0,
        LINE=64 // dtype.itemsize,
    )


def _decode(
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
    scale,
):
    head_dim = HEAD_DIM if HEAD_DIM > 0 else head_dim
    # All heads that share keys go over a block while it is in the processor's cache. In scratch are their queries,
    # their sums of values, and their scores of all tokens.
    total, score, room = shared * head_dim, 2 * shared * head_dim, width * block_size
    size = block_size * head_dim
    ahead = 1 + (LINES_AHEAD * LINE - 1) // size
    for row in range(rows):
        table = row * width
        end = np.int64(ends[row])
        start = max(0, end - window)
        first_block, end_block = start // block_size, (end - 1) // block_size + 1
        for kv_head in range(kv_heads):
            keys = kv_head * by_head
            values = keys + size
            next_keys = min(kv_head + 1, kv_heads - 1) * by_head
            first_head = kv_head * shared
            for head in range(shared):
                first = row * by_query + (first_head + head) * by_query_head
                for i in range(head_dim):
                    scratch[head * head_dim + i] = read(queries, first + i) * scale
                    scratch[total + head * head_dim + i] = np.float32(0.0)
            for block in range(first_block, end_block):
                here = tables[table + block] * by_block + keys
                soon = _soon(tables, table, block + ahead, first_block, end_block, by_block, keys, values)
                token = block * block_size
                first, last = max(0, start - token), min(block_size, end - token)
                _score(cache, here, soon, scratch, score + token, room, shared, first, last, head_dim, LINE)
            for head in range(shared):
                # The query is done with; the sum of its weights takes its place.
                scratch[head * head_dim] = weigh(
                    scratch, score + head * room + start, score + head * room + end, np.float32(1.0)
                )
            for block in range(first_block, end_block):
                here = tables[table + block] * by_block + values
                soon = _soon(tables, table, block + ahead, first_block, end_block, by_block, values, next_keys)
                token = block * block_size
                first, last = max(0, start - token), min(block_size, end - token)
                _add(cache, here, soon, scratch, total, score + token, room, shared, first, last, head_dim, LINE)
            for head in range(shared):
                target = (row * kv_heads * shared + first_head + head) * head_dim
                for i in range(head_dim):
                    write(outputs, target + i, scratch[total + head * head_dim + i] / scratch[head * head_dim])


@njit(inline="always")
def _soon(tables, table, block, first_block, end_block, by_block, these, next_ones):
    """Where the numbers are that will be read when it is the turn of ``block``.

    ``these`` is where they are in a block. Behind the last block it is the turn of the first ones again, for what is at
    ``next_ones`` in them.
    """
    if block < end_block:
        return tables[table + block] * by_block + these
    return tables[table + min(first_block + block - end_block, end_block - 1)] * by_block + next_ones


@njit(inline="always")
def _score(cache, keys, soon, scratch, score, room, shared, first, end, head_dim, line):
    """The products of the queries at the start of ``scratch`` and a block's keys of the slots ``first`` to ``end``.

    ``score``: where that of slot 0 is for the first query; that for the next one is ``room`` behind. Fetches ``soon``,
    the keys of a later block.
    """
    # Four sums at a time: the additions of one have to wait for each other.
    fours = first + (end - first) // 4 * 4
    for slot in range(first, fours, 4):
        key = keys + slot * head_dim
        for i in range(0, 4 * head_dim, line):
            fetch(cache, soon + slot * head_dim + i)
        for head in range(shared):
            dot0 = dot1 = dot2 = dot3 = np.float32(0.0)
            for i in range(head_dim):
                number = scratch[head * head_dim + i]
                dot0 += number * read(cache, key + i)
                dot1 += number * read(cache, key + head_dim + i)
                dot2 += number * read(cache, key + 2 * head_dim + i)
                dot3 += number * read(cache, key + 3 * head_dim + i)
            to = score + head * room + slot
            scratch[to], scratch[to + 1], scratch[to + 2], scratch[to + 3] = dot0, dot1, dot2, dot3
    for slot in range(fours, end):
        for head in range(shared):
            dot = np.float32(0.0)
            for i in range(head_dim):
                dot += scratch[head * head_dim + i] * read(cache, keys + slot * head_dim + i)
            scratch[score + head * room + slot] = dot


@njit(inline="always")
def _add(cache, values, soon, scratch, total, score, room, shared, first, end, head_dim, line):
    """Add a block's values, times their weights, to the sums that begin at ``total``. The rest is as in ``_score``."""
    # Four tokens at a time, so that sums are loaded and stored once for four.
    fours = first + (end - first) // 4 * 4
    for slot in range(first, fours, 4):
        value = values + slot * head_dim
        for i in range(0, 4 * head_dim, line):
            fetch(cache, soon + slot * head_dim + i)
        for head in range(shared):
            of, to = score + head * room + slot, total + head * head_dim
            weight0, weight1, weight2, weight3 = scratch[of], scratch[of + 1], scratch[of + 2], scratch[of + 3]
            for i in range(head_dim):
                scratch[to + i] += (
                    weight0 * read(cache, value + i)
                    + weight1 * read(cache, value + head_dim + i)
                    + weight2 * read(cache, value + 2 * head_dim + i)
                    + weight3 * read(cache, value + 3 * head_dim + i)
                )
    for slot in range(fours, end):
        for head in range(shared):
            weight = scratch[score + head * room + slot]
            for i in range(head_dim):
                scratch[total + head * head_dim + i] += weight * read(cache, values + slot * head_dim + i)
