"""The programs that run on the GPU, in Triton's subset of Python. Nothing else imports them but ``triton_kernel``.

``attend_program`` computes up to BLOCK_M queries of one row that share a KV head: those of several heads, and of
several tokens. It goes through the keys in tiles of BLOCK_N and finds the block of every single key in the row's table,
so a tile may reach over many small blocks. The softmax is computed along the way: the largest score so far, the sum of
the weights relative to it, and the weighted values; what was summed is scaled down whenever a larger score turns up.
With NUM_SPLITS above one, each program takes a share of the tiles, and ``merge_program`` merges what they found.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["window", "num_tokens", "tiles_per_row", "table_stride", "query_token_stride"])
def attend_program(
    query,
    blocks,
    tables,
    ends,
    out,
    sums,
    maxima,
    scaling,
    window,
    num_tokens,
    tiles_per_row,
    query_head_stride,
    query_token_stride,
    block_stride,
    head_stride,
    value_offset,
    table_stride,
    out_split_stride,
    SHARED: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Rows of equally many tokens: see ``PagedRows``."""
    row = tl.program_id(0) // tiles_per_row
    first_query = tl.program_id(0) % tiles_per_row * (BLOCK_M // SHARED)
    table = tables + row * table_stride
    first_token = row * num_tokens
    start = tl.load(ends + row) - num_tokens
    QUERIES: tl.constexpr = BLOCK_M // SHARED
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    lane = tl.arange(0, BLOCK_M)
    number = first_query + lane // SHARED
    is_query = (lane // SHARED < QUERIES) & (number < num_tokens)
    head = kv_head * SHARED + lane % SHARED
    token = first_token + number
    position = start + number
    dim = tl.arange(0, BLOCK_D)
    query_mask = is_query[:, None] & (dim < HEAD_DIM)[None, :]
    query_at = head[:, None] * query_head_stride + token[:, None] * query_token_stride + dim[None, :]
    queries = tl.load(query + query_at, mask=query_mask, other=0.0)

    # Behind the last query there is nothing to do.
    stop = tl.where(first_query < num_tokens, start + tl.minimum(first_query + QUERIES, num_tokens), 0)
    first_tile = 0
    if WINDOWED:
        first_tile = tl.maximum(start + first_query - window + 1, 0) // BLOCK_N
    last_tile = tl.cdiv(stop, BLOCK_N)
    share = tl.cdiv(last_tile - first_tile, NUM_SPLITS)
    begin = first_tile + split * share

    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for tile in range(begin, tl.minimum(begin + share, last_tile)):
        key_position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        is_key = key_position < stop
        block = tl.load(table + key_position // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        key_at = block * block_stride + kv_head * head_stride + key_position % BLOCK_SIZE * HEAD_DIM
        key_mask = is_key[None, :] & (dim < HEAD_DIM)[:, None]
        keys = tl.load(blocks + key_at[None, :] + dim[:, None], mask=key_mask, other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scaling
        is_seen = is_key[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOWED:
            is_seen = is_seen & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(is_seen, scores, float("-inf"))

        larger = tl.maximum(largest, tl.max(scores, 1))
        # A query that has seen no key yet has no largest score; minus infinity less itself would not be a number.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp(scores - base[:, None])
        fading = tl.exp(largest - base)
        value_mask = is_key[:, None] & (dim < HEAD_DIM)[None, :]
        values = tl.load(blocks + value_offset + key_at[:, None] + dim[None, :], mask=value_mask, other=0.0)
        weighted = weighted * fading[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * fading + tl.sum(weights, 1)
        largest = larger

    found_at = split * out_split_stride + token * NUM_HEADS + head
    if NUM_SPLITS == 1:
        weighted = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    else:
        tl.store(sums + found_at, total, mask=is_query)
        tl.store(maxima + found_at, largest, mask=is_query)
    tl.store(out + found_at[:, None] * HEAD_DIM + dim[None, :], weighted.to(out.dtype.element_ty), mask=query_mask)


@triton.jit
def merge_program(
    weighted,
    sums,
    maxima,
    out,
    split_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Merges the splits of one (token, head)."""
    at = tl.program_id(0)
    split_at = tl.arange(0, NUM_SPLITS) * split_stride + at
    dim = tl.arange(0, BLOCK_D)
    # Some split has seen the token itself, so the largest maximum is a number; a split without keys fades to nothing.
    split_maxima = tl.load(maxima + split_at)
    fading = tl.exp(split_maxima - tl.max(split_maxima, 0))
    total = tl.sum(tl.load(sums + split_at) * fading, 0)
    mask = dim < HEAD_DIM
    parts = tl.load(weighted + split_at[:, None] * HEAD_DIM + dim[None, :], mask=mask[None, :], other=0.0)
    merged = tl.sum(parts * fading[:, None], 0) / total
    tl.store(out + at * HEAD_DIM + dim, merged.to(out.dtype.element_ty), mask=mask)
