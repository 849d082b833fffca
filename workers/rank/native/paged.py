"""Programs that read or write the paged cache in place; ``cache/kv_cache.py`` says how it is laid out."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workers.rank.native.compiled import compiled
from workers.rank.native.numbers import ELEMENTS, exponential, read, write


@lru_cache(maxsize=4)
def store(dtype):
    """``f(cache, slots, keys, values, tokens, kv_heads, head_dim, by_head, to_values, key_token, key_head, value_token,
    value_head)``: copies keys and values into the cache.

    ``cache`` is that of the layer; ``slots``: for each token, its slot of head 0's keys. ``by_head`` and ``to_values``
    count slots, the other distances numbers.
    """
    return compiled(_store, "elements indices elements elements" + 9 * " int", ELEMENTS[dtype])


def _store(
    cache, slots, keys, values, tokens, kv_heads, head_dim, by_head, to_values, k_token, k_head, v_token, v_head
):
    for token in range(tokens):
        for head in range(kv_heads):
            key, value = token * k_token + head * k_head, token * v_token + head * v_head
            to_key = (slots[token] + head * by_head) * head_dim
            to_value = to_key + to_values * head_dim
            for i in range(head_dim):
                cache[to_key + i] = keys[key + i]
            for i in range(head_dim):
                cache[to_value + i] = values[value + i]


@lru_cache(maxsize=4)
def decode(dtype):
    """``f(cache, tables, ends, queries, outputs, scratch, rows, width, kv_heads, shared, head_dim, block_size,
    by_block, by_head, by_query, by_query_head, window, scale)``: the attention of rows of one token.

    ``cache`` is that of the layer. ``tables`` are ``[row, width]``, ``ends`` the lengths of the contexts; outputs are
    ``[row, head, head_dim]``. ``shared`` heads of a query have one head of keys. ``scratch`` has room for
    ``width * block_size + 2 * head_dim`` float32. Distances count numbers.
    """
    return compiled(
        _decode, "elements integers integers elements elements floats" + 11 * " int" + " float", ELEMENTS[dtype]
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
    query, total = width * block_size, width * block_size + head_dim
    for row in range(rows):
        end = np.int64(ends[row])
        start = max(0, end - window)
        first_block, end_block = start // block_size, (end - 1) // block_size + 1
        for head in range(kv_heads * shared):
            first = row * by_query + head * by_query_head
            for i in range(head_dim):
                scratch[query + i] = read(queries, first + i) * scale
                scratch[total + i] = np.float32(0.0)
            keys = (head // shared) * by_head
            largest = np.float32(-np.inf)
            for block in range(first_block, end_block):
                base = tables[row * width + block] * by_block + keys
                first_token = block * block_size
                for slot in range(max(0, start - first_token), min(block_size, end - first_token)):
                    dot = np.float32(0.0)
                    for i in range(head_dim):
                        dot += scratch[query + i] * read(cache, base + slot * head_dim + i)
                    scratch[first_token + slot] = dot
                    largest = max(largest, dot)
            weight = np.float32(0.0)
            for token in range(start, end):
                power = exponential(scratch[token] - largest)
                scratch[token] = power
                weight += power
            values = keys + block_size * head_dim
            for block in range(first_block, end_block):
                base = tables[row * width + block] * by_block + values
                first_token = block * block_size
                for slot in range(max(0, start - first_token), min(block_size, end - first_token)):
                    power = scratch[first_token + slot]
                    for i in range(head_dim):
                        scratch[total + i] += power * read(cache, base + slot * head_dim + i)
            target = (row * kv_heads * shared + head) * head_dim
            for i in range(head_dim):
                write(outputs, target + i, scratch[total + i] / weight)
