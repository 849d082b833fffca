"""Kernels for tests: one in plain torch, and the product's own under Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch

from baton_serve.workers.rank.in_place.rows import Kernel, PagedRows

#: Of the caches that kernels are tried with, and the layer that they read.
NUM_BLOCKS, LAYER, NUM_LAYERS = 60, 1, 3


def rows_of(ends: list[int], num_tokens: int) -> PagedRows:
    """Blocks in no order; after a row's own, the table has blocks of others."""
    blocks = torch.randperm(NUM_BLOCKS, dtype=torch.int32)
    tables = torch.stack([blocks.roll(7 * number) for number in range(len(ends))])
    return PagedRows(0, num_tokens, tables, torch.tensor(ends, dtype=torch.int32), max(ends))


def drawn(
    rows: PagedRows, dtype: torch.dtype, kv_heads: int, shared: int, head_dim: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a kernel is asked at random: a query, the blocks of a layer, and where the outputs go."""
    blocks = torch.randn(NUM_BLOCKS, kv_heads, NUM_LAYERS, 2, block_size, head_dim).to(dtype)[:, :, LAYER]
    query = torch.randn(rows.tokens.stop, kv_heads * shared, head_dim).to(dtype).transpose(0, 1)
    return query, blocks, torch.empty(rows.tokens.stop, kv_heads * shared, head_dim, dtype=dtype)


class PlainKernel:
    """The ``Kernel`` as its port describes it, query by query."""

    def __call__(
        self,
        query: torch.Tensor,
        blocks: torch.Tensor,
        rows: PagedRows,
        scaling: float,
        window: int | None,
        out: torch.Tensor,
    ) -> None:
        for token in range(query.shape[1]):
            row, number = divmod(token, rows.num_tokens)
            stop = int(rows.ends[row]) - rows.num_tokens + number + 1
            out[token] = _attended(query[:, token], blocks, rows.tables[row], stop, scaling, window)


def _attended(
    query: torch.Tensor, blocks: torch.Tensor, table: torch.Tensor, stop: int, scaling: float, window: int | None
) -> torch.Tensor:
    """The attention ``[head, head_dim]`` of one token to those before ``stop``."""
    first = 0 if window is None else max(0, stop - window)
    positions = torch.arange(first, stop)
    found = blocks[table.to(torch.int64)[positions // blocks.shape[3]], :, :, positions % blocks.shape[3]].float()
    keys, values = (found[:, :, kind].repeat_interleave(query.shape[0] // blocks.shape[1], dim=1) for kind in (0, 1))
    scores = torch.einsum("hd,khd->hk", query.float(), keys) * scaling
    return torch.einsum("hk,khd->hd", scores.softmax(-1), values).to(query.dtype)


def needs_triton(device: str) -> None:
    """Skip the test unless programs of GPUs run: on the GPU, or where there is none under Triton's interpreter
    (tests/conftest.py).
    """
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("programs run on the GPU that there is, not under the interpreter")
    pytest.importorskip("triton", reason="needs Triton: pip install triton")


def triton_kernel(num_processors: int, device: str) -> Kernel:
    """The kernel of GPUs. See ``needs_triton``."""
    needs_triton(device)
    from baton_serve.workers.rank.in_place.triton_kernel import TritonKernel

    return TritonKernel(num_processors)
