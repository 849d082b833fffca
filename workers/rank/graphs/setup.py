"""Whether a rank computes its decode steps by graphs; if so, it records them before it serves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from workers.rank.graphs.cuda_recorder import CudaRecorder
from workers.rank.graphs.decode_graphs import DecodeGraphs
from workers.rank.graphs.sizes import graph_sizes
from workers.rank_protocol.errors import ModelLoadError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from workers.rank.cache.kv_cache import KVCache
    from workers.rank.device import RankDevice
    from workers.rank.graphs.port import Recorder
    from workers.rank.in_place.port import Kernel
    from workers.rank.loading.model import ModelShard
    from workers.rank_protocol.spec import RankSpec


def wants_graphs(spec: RankSpec, rank_device: RankDevice, kernel: Kernel | None) -> bool:
    """Whether to record graphs, by ``RankSpec.decode_graphs``. Raises ModelLoadError if ``on`` is not possible."""
    obstacle = _obstacle(spec, rank_device, kernel)
    if spec.decode_graphs == "on" and obstacle:
        raise ModelLoadError(f"decode graphs are wanted, but {obstacle}")
    return spec.decode_graphs != "off" and not obstacle


def _obstacle(spec: RankSpec, rank_device: RankDevice, kernel: Kernel | None) -> str:
    if rank_device.device.type != "cuda":
        return f"the model is on {rank_device.device.type}, and they need a GPU"
    return "" if kernel is not None else "they need attention in-place"


def record_graphs(
    spec: RankSpec,
    model: ModelShard,
    cache: KVCache,
    progress: Callable[[str], None],
    make_recorder: Callable[[torch.device], Recorder] = CudaRecorder,
) -> DecodeGraphs | None:
    """Record the graphs of a rank; None if it does without. Raises ModelLoadError.

    What cannot be recorded is an error where graphs were asked for, and where there are several ranks: the others would
    wait for one that goes on without.
    """
    if model.kernel is None or not wants_graphs(spec, model.rank_device, model.kernel):
        return None
    began_s = time.monotonic()
    sizes = graph_sizes(spec.max_num_seqs)
    try:
        graphs = DecodeGraphs(model, model.kernel, cache, make_recorder(cache.device), sizes)
    except RuntimeError as error:
        if spec.decode_graphs == "on" or spec.num_ranks > 1:
            raise ModelLoadError(f"decode steps cannot be recorded as graphs: {one_line(error)}") from error
        progress(f"decoding without graphs, because steps cannot be recorded: {one_line(error)}")
        return None
    progress(f"recorded decode graphs for up to {sizes[-1]} rows in {time.monotonic() - began_s:.2f} s")
    return graphs
