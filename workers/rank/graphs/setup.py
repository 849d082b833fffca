"""Whether a rank computes its decode steps by graphs; if so, it records them before it serves."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.graphs.cuda_recorder import CudaRecorder, Recorder
from baton_serve.workers.rank.graphs.decode_graphs import DecodeGraphs, graph_sizes
from baton_serve.workers.rank.in_place.rows import Kernel
from baton_serve.workers.rank.loading.model import ModelShard
from baton_serve.workers.rank_protocol.errors import ModelLoadError, chain, one_line
from baton_serve.workers.rank_protocol.spec import RankSpec


def wants_graphs(spec: RankSpec, device: torch.device, kernel: Kernel | None) -> bool:
    """Whether to record graphs. Raises ModelLoadError if they are set to ``on`` and not possible."""
    obstacle = ""
    if device.type == "cpu":
        obstacle = "they need a GPU"
    elif kernel is None:
        obstacle = "they need attention in-place"
    if spec.decode_graphs == "on" and obstacle:
        raise ModelLoadError(f"decode graphs are wanted, but {obstacle}")
    return spec.decode_graphs != "off" and not obstacle


def record_graphs(
    spec: RankSpec,
    model: ModelShard,
    cache: KVCache,
    progress: Callable[[str], None],
    make_recorder: Callable[[torch.device], Recorder] = CudaRecorder,
) -> DecodeGraphs | None:
    """Record the graphs of a rank; None: it does without.

    What cannot be recorded is an error where graphs were asked for. Else the rank does without. What CUDA does not
    record it refuses on all ranks of an engine, which run the same code. Anything else may have happened to one of
    them, memory that has run out for one, and the others would wait for it. Raises ModelLoadError.
    """
    if model.kernel is None or not wants_graphs(spec, model.device, model.kernel):
        return None
    began_s = time.monotonic()
    sizes = graph_sizes(spec.max_num_seqs)
    try:
        graphs = DecodeGraphs(model, model.kernel, cache, make_recorder(cache.device), sizes)
    except RuntimeError as error:
        # What fails later in a recording may hide that memory has run out.
        why, has_no_memory = one_line(error), any(isinstance(one, torch.OutOfMemoryError) for one in chain(error))
        if has_no_memory:
            why += " (a smaller --gpu-memory-fraction leaves more memory; --decode-graphs off takes less)"
        if spec.decode_graphs == "on" or (spec.num_ranks > 1 and (has_no_memory or "captur" not in why)):
            raise ModelLoadError(f"decode steps cannot be recorded as graphs: {why}") from error
        progress(f"decode steps are computed without graphs, because they cannot be recorded: {why}")
        return None
    progress(f"recorded decode graphs for up to {sizes[-1]} rows in {time.monotonic() - began_s:.2f} s")
    return graphs
