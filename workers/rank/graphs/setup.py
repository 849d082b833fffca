"""Whether a rank computes its steps by graphs; if so, it records them before it serves."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from baton_serve.workers.rank.graphs.decode_graphs import DecodeGraphs
from baton_serve.workers.rank.graphs.port import RecordError
from baton_serve.workers.rank.graphs.prefill_graphs import PrefillGraphs
from baton_serve.workers.rank.graphs.recorders.cpu_recorder import CpuRecorder
from baton_serve.workers.rank.graphs.recorders.cuda_recorder import CudaRecorder
from baton_serve.workers.rank.graphs.sizes import MAX_ROWS, graph_sizes, prefill_sizes
from baton_serve.workers.rank.in_place.port import RaggedKernel
from baton_serve.workers.rank_protocol.errors import ModelLoadError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton_serve.workers.rank.cache.kv_cache import KVCache
    from baton_serve.workers.rank.device import RankDevice
    from baton_serve.workers.rank.graphs.port import Recorder, StepGraphs
    from baton_serve.workers.rank.in_place.port import Kernel
    from baton_serve.workers.rank.loading.model import ModelShard
    from baton_serve.workers.rank_protocol.spec import RankSpec


def wants_graphs(spec: RankSpec, rank_device: RankDevice, kernel: Kernel | None) -> bool:
    """Whether to record graphs of any kind. Raises ModelLoadError if what is set to ``on`` is not possible."""
    # Both are looked at, since each may raise.
    return any([_wants_decode(spec, rank_device, kernel), _wants_prefill(spec, rank_device, kernel)])


def _wants_decode(spec: RankSpec, rank_device: RankDevice, kernel: Kernel | None) -> bool:
    obstacle = ""
    if kernel is None:
        obstacle = "they need attention in-place"
    elif rank_device.device.type == "cpu" and spec.num_ranks > 1:
        obstacle = "on CPUs they need a single rank"
    return _is_wanted("decode", spec.decode_graphs, obstacle)


def _wants_prefill(spec: RankSpec, rank_device: RankDevice, kernel: Kernel | None) -> bool:
    obstacle = ""
    if kernel is None:
        obstacle = "they need attention in-place"
    elif not isinstance(kernel, RaggedKernel) or rank_device.device.type == "cpu":
        obstacle = "they need a GPU"
    return _is_wanted("prefill", spec.prefill_graphs, obstacle)


def _is_wanted(kind: str, setting: str, obstacle: str) -> bool:
    if setting == "on" and obstacle:
        raise ModelLoadError(f"{kind} graphs are wanted, but {obstacle}")
    return setting != "off" and not obstacle


def _recorder_for(device: torch.device) -> Recorder:
    return CpuRecorder() if device.type == "cpu" else CudaRecorder(device)


def record_graphs(
    spec: RankSpec,
    model: ModelShard,
    cache: KVCache,
    progress: Callable[[str], None],
    make_recorder: Callable[[torch.device], Recorder] = _recorder_for,
) -> list[StepGraphs]:
    """Record the graphs of a rank, those for decode steps first; those that it does without are not there.

    Raises ModelLoadError.
    """
    kernel = model.kernel
    graphs: list[StepGraphs] = []
    if kernel is None:
        return graphs
    # One for both: its recordings share their memory.
    recorder = make_recorder(cache.device)
    if _wants_decode(spec, model.rank_device, kernel):
        began_s = time.monotonic()
        sizes = graph_sizes(spec.max_num_seqs, is_quick=recorder.is_quick)
        with _recording("decode", spec.decode_graphs, spec, progress):
            graphs.append(DecodeGraphs(model, kernel, cache, recorder, sizes))
            progress(_recorded(sizes[-1], time.monotonic() - began_s, is_quick=recorder.is_quick))
        if not graphs:
            recorder = make_recorder(cache.device)  # the other one may have stopped in the middle
    if _wants_prefill(spec, model.rank_device, kernel):
        assert isinstance(kernel, RaggedKernel), "asked for"
        began_s = time.monotonic()
        sizes = prefill_sizes(spec.max_num_batched_tokens)
        with _recording("prefill", spec.prefill_graphs, spec, progress):
            made = PrefillGraphs(model, kernel, cache, recorder, sizes, min(spec.max_num_seqs, MAX_ROWS))
            graphs.append(made)
            progress(
                f"recorded prefill graphs for up to {made.max_tokens} tokens in {time.monotonic() - began_s:.2f} s"
            )
    return graphs


def _recorded(num_rows: int, seconds: float, *, is_quick: bool) -> str:
    if is_quick:
        return f"decode steps of up to {num_rows} rows are recorded as they recur, the first ones in {seconds:.2f} s"
    return f"recorded decode graphs for up to {num_rows} rows in {seconds:.2f} s"


@contextmanager
def _recording(kind: str, setting: str, spec: RankSpec, progress: Callable[[str], None]) -> Iterator[None]:
    """What cannot be recorded is an error where graphs were asked for, and where the other ranks would wait for one
    that goes on without.
    """
    try:
        yield
    except RuntimeError as error:
        why = one_line(error)
        if isinstance(error, torch.OutOfMemoryError):
            why += f" (a smaller --gpu-memory-fraction leaves more memory; --{kind}-graphs off takes less)"
        if setting == "on" or (spec.num_ranks > 1 and not isinstance(error, RecordError)):
            raise ModelLoadError(f"{kind} steps cannot be recorded as graphs: {why}") from error
        progress(f"{kind} steps are computed without graphs, because they cannot be recorded: {why}")
