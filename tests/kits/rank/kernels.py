"""Kernels for tests: one in plain torch, and the product's own under Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch

from baton_serve.workers.rank.in_place.rows import Kernel, PagedRows


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
