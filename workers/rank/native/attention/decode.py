"""Attention of rows of one token: by ``one_token`` where ``tiled`` computes that of prompts, else by ``paged``."""

from __future__ import annotations

import torch

from baton_serve.workers.rank.native.attention import one_token, paged
from baton_serve.workers.rank.native.attention.causal import NO_WINDOW, tiles_take
from baton_serve.workers.rank.native.attention.layout import laid_per_word


def attend_one_token(
    query: torch.Tensor,
    blocks: torch.Tensor,
    tables: torch.Tensor,
    ends: torch.Tensor,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """Attention of rows ``[head, row, head_dim]`` to the blocks of ``tables`` ``[row, block]``; see ``Kernel``."""
    if not tiles_take((query, blocks, out)):
        attend_without_tiles(query, blocks, tables, ends, scale, window, out)
        return
    _, kv_heads, _, block_size, head_dim = blocks.shape
    most_keys, threads = tables.shape[1] * block_size, torch.get_num_threads()
    # Heads of keys are shared among threads, so no more of them need room.
    working, pair = min(threads, len(tables) * kv_heads), laid_per_word(query.dtype)
    num_floats = one_token.scratch_floats(most_keys, query.shape[0] // kv_heads, head_dim, working, pair)
    scratch = torch.empty(num_floats, dtype=torch.float32)
    numbers = _numbers(query, blocks, tables, ends, window, out, scratch)
    more = blocks.stride(2), blocks.stride(3), most_keys, threads
    one_token.attend(blocks.dtype)(*numbers, *more, scale)


def attend_without_tiles(
    query: torch.Tensor,
    blocks: torch.Tensor,
    tables: torch.Tensor,
    ends: torch.Tensor,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """The same on any processor."""
    _, kv_heads, _, block_size, head_dim = blocks.shape
    shared, most_keys = query.shape[0] // kv_heads, tables.shape[1] * block_size
    scratch = torch.empty(shared * (most_keys + 2 * head_dim), dtype=torch.float32)
    paged.decode(blocks.dtype, head_dim)(*_numbers(query, blocks, tables, ends, window, out, scratch), scale)


def _numbers(
    query: torch.Tensor,
    blocks: torch.Tensor,
    tables: torch.Tensor,
    ends: torch.Tensor,
    window: int | None,
    out: torch.Tensor,
    scratch: torch.Tensor,
) -> tuple[int, ...]:
    """What both programs are called with, in their order."""
    _, kv_heads, _, block_size, head_dim = blocks.shape
    num_rows, width = tables.shape
    return (
        blocks.data_ptr(),
        tables.data_ptr(),
        ends.data_ptr(),
        query.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
        num_rows,
        width,
        kv_heads,
        query.shape[0] // kv_heads,
        head_dim,
        block_size,
        blocks.stride(0),
        blocks.stride(1),
        query.stride(1),
        query.stride(0),
        window or NO_WINDOW,
    )
