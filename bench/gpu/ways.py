"""The ranks that are compared: one model, loaded once for each way to compute a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from baton_serve.workers.rank_protocol.spec import RankSpec
from bench.steps import BLOCK_SIZE, load

if TYPE_CHECKING:
    from pathlib import Path

    from baton_serve.workers.rank.main import LoadedRank

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
