"""The least time that a decode step can take: that of moving the bytes which it must read."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.gpu.steps import Cell
    from bench.models.llama import LlamaSize

#: Of the copy that is timed. Much more than a GPU's cache has, so that memory is what is measured.
COPY_BYTES = 2**30
NUM_COPIES = 20
#: Bytes of a number in bfloat16.
ITEM_BYTES = 2


def copy_bytes_per_s() -> float:
    """Bytes that the first GPU reads and writes in a second while it copies within its own memory."""
    import torch

    source = torch.ones(COPY_BYTES // 8, dtype=torch.int64, device="cuda:0")
    target = torch.empty_like(source)
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    took_ms: list[float] = []
    for _ in range(NUM_COPIES):
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        took_ms.append(begin.elapsed_time(end))
    return 2 * COPY_BYTES / (median(took_ms) * 1e-3)


def step_bytes(size: LlamaSize, cell: Cell) -> int:
    """What a step in bfloat16 reads at least: every weight once, and keys and values of every token of a context."""
    head_dim = size.hidden // size.heads
    token_bytes = 2 * size.layers * size.kv_heads * head_dim * ITEM_BYTES
    return size.num_parameters * ITEM_BYTES + cell.num_rows * cell.num_tokens * token_bytes
