"""The ranks that are compared: one model, loaded once for each way to compute a step; and the least time that a decode
step can take, which is that of moving the bytes which it must read.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Literal

from baton_serve.workers.rank.main import LoadedRank
from baton_serve.workers.rank_protocol.spec import RankSpec
from bench.gpu.steps import Cell
from bench.models.llama import LlamaSize
from bench.steps import BLOCK_SIZE, load

Attention = Literal["gather", "in-place"]
Graphs = Literal["off", "on"]
#: By name: how attention reads the cache, and whether decode steps are graphs.
WAYS: dict[str, tuple[Attention, Graphs]] = {
    "gathered": ("gather", "off"),
    "in place": ("in-place", "off"),
    "in place, graphs": ("in-place", "on"),
}
#: Of the memory that is free before anything is loaded, for the caches of all ways together; the rest is for weights
#: and for what gathering takes.
CACHE_FRACTION = 0.6
#: Of the copy that is timed. Much more than a GPU's cache has, so that memory is what is measured.
COPY_BYTES = 2**30
NUM_COPIES = 20
#: Bytes of a number in bfloat16.
ITEM_BYTES = 2


def load_ways(folder: Path, max_num_seqs: int) -> dict[str, LoadedRank]:
    """All ways on the first GPU, in bfloat16. Raises RankError and errors of torch."""
    import torch

    free, _total = torch.cuda.mem_get_info(0)
    cache_bytes = int(free * CACHE_FRACTION / len(WAYS))
    return {name: load(_spec(folder, name, max_num_seqs, cache_bytes), _say) for name in WAYS}


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _spec(folder: Path, name: str, max_num_seqs: int, cache_bytes: int) -> RankSpec:
    attention, graphs = WAYS[name]
    return RankSpec(
        model=str(folder),
        engine_id="gpu",
        device="cuda:0",
        dtype="bfloat16",
        attention=attention,
        decode_graphs=graphs,
        max_num_seqs=max_num_seqs,
        block_size=BLOCK_SIZE,
        kv_cache_bytes=cache_bytes,
        transfer="none",
    )


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
