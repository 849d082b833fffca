"""Attention of rows of one token: by tiles where the processor has AVX512, else by ``paged``."""

from __future__ import annotations

import torch

from workers.rank.native.attention import one_token, paged
from workers.rank.native.attention.causal import NO_WINDOW
from workers.rank.native.support import has_tiles
from workers.rank.native.tiles import LANES


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
    head_dim, is_paired = blocks.shape[4], query.stride(0) % 2 == 0
    if head_dim % LANES == 0 and is_paired and has_tiles(query.dtype):
        _by_tiles(query, blocks, tables, ends, scale, window, out)
    else:
        attend_without_tiles(query, blocks, tables, ends, scale, window, out)


def _by_tiles(
    query: torch.Tensor,
    blocks: torch.Tensor,
    tables: torch.Tensor,
    ends: torch.Tensor,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    _, kv_heads, _, block_size, head_dim = blocks.shape
    num_rows, width = tables.shape
    shared, most_keys, threads = query.shape[0] // kv_heads, width * block_size, torch.get_num_threads()
    scratch = torch.empty(one_token.scratch_floats(most_keys, shared, head_dim, threads), dtype=torch.float32)
    one_token.attend(blocks.dtype)(
        blocks.data_ptr(),
        tables.data_ptr(),
        ends.data_ptr(),
        query.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
        num_rows,
        width,
        kv_heads,
        shared,
        head_dim,
        block_size,
        blocks.stride(0),
        blocks.stride(1),
        query.stride(1),
        query.stride(0),
        window or NO_WINDOW,
        most_keys,
        threads,
        scale,
    )


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
    num_rows, width = tables.shape
    shared = query.shape[0] // kv_heads
    scratch = torch.empty(shared * (width * block_size + 2 * head_dim), dtype=torch.float32)
    paged.decode(blocks.dtype, head_dim)(
        blocks.data_ptr(),
        tables.data_ptr(),
        ends.data_ptr(),
        query.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
        num_rows,
        width,
        kv_heads,
        shared,
        head_dim,
        block_size,
        blocks.stride(0),
        blocks.stride(1),
        query.stride(1),
        query.stride(0),
        window or NO_WINDOW,
        scale,
    )
