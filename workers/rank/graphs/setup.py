"""Whether a rank computes its decode steps by graphs; if so, it records them before it serves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from workers.rank.graphs.cpu_recorder import CpuRecorder
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
    if kernel is None:
        return "they need attention in-place"
    if rank_device.device.type == "cpu" and spec.num_ranks > 1:
        return "on CPUs they need a single rank"
    return ""


def _recorder_for(device: torch.device) -> Recorder:
    return CpuRecorder() if device.type == "cpu" else CudaRecorder(device)


def record_graphs(
    spec: RankSpec,
    model: ModelShard,
    cache: KVCache,
    progress: Callable[[str], None],
    make_recorder: Callable[[torch.device], Recorder] = _recorder_for,
) -> DecodeGraphs | None:
    """Record the graphs of a rank; None if it does without. Raises ModelLoadError.

    What cannot be recorded is an error where graphs were asked for, and where there are several ranks: the others would
    wait for one that goes on without.
    """
    if model.kernel is None or not wants_graphs(spec, model.rank_device, model.kernel):
        return None
    began_s = time.monotonic()
    try:
        recorder = make_recorder(cache.device)
        sizes = graph_sizes(spec.max_num_seqs, is_quick=recorder.is_quick)
        graphs = DecodeGraphs(model, model.kernel, cache, recorder, sizes)
    except RuntimeError as error:
        if spec.decode_graphs == "on" or spec.num_ranks > 1:
            raise ModelLoadError(f"decode steps cannot be recorded as graphs: {one_line(error)}") from error
        progress(f"decoding without graphs, because steps cannot be recorded: {one_line(error)}")
        return None
    taken = f"{time.monotonic() - began_s:.2f} s"
    if recorder.is_quick:
        progress(f"decode steps of up to {sizes[-1]} rows are recorded as they come, the first ones in {taken}")
    else:
        progress(f"recorded decode graphs for up to {sizes[-1]} rows in {taken}")
    return graphs
