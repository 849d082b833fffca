"""What a rank does when steps cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from msgspec.structs import replace as with_fields

from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.graphs.cuda_recorder import Replay
from baton_serve.workers.rank.graphs.setup import record_graphs
from baton_serve.workers.rank.loading.model import ModelShard
from baton_serve.workers.rank_protocol.errors import ModelLoadError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits.rank.kernels import PlainKernel
from tests.kits.rank.models import Models
from tests.kits.rank.recorders import PlainRecorder

SPEC = RankSpec(model="m", engine_id="e", max_num_seqs=3)


class FailingRecorder:
    """As on a GPU, for a model that waits for it."""

    def __init__(self, device: torch.device) -> None:
        pass

    def __call__(self, work: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")


class LostRecorder(FailingRecorder):
    """As on a GPU of which another rank has gone."""

    def __call__(self, work: Callable[[], None]) -> Replay:
        raise RuntimeError("NCCL error: unhandled cuda error")


class FullRecorder(FailingRecorder):
    """As on a GPU without memory."""

    def __call__(self, work: Callable[[], None]) -> Replay:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.fixture
def model(model_of: Models) -> ModelShard:
    """A model that says it is on a GPU; its tensors are not."""
    return replace(model_of("llama"), kernel=PlainKernel(), device=torch.device("cuda", 0))


@pytest.fixture
def cache(model: ModelShard) -> KVCache:
    return KVCache(model.cache_shape, 4, torch.device("cpu"), with_spare=True)


def test_graphs_for_every_size_are_recorded_at_the_start(model: ModelShard, cache: KVCache) -> None:
    recorder, said = PlainRecorder(), list[str]()
    graphs = record_graphs(SPEC, model, cache, said.append, lambda device: recorder)
    assert repr(graphs) == "<DecodeGraphs of 1, 2, 3 rows>"
    assert recorder.num_recordings == 3
    assert said[0].startswith("recorded decode graphs for up to 3 rows in ")


def test_graphs_can_be_off(model: ModelShard, cache: KVCache) -> None:
    recorder = PlainRecorder()
    assert record_graphs(with_fields(SPEC, decode_graphs="off"), model, cache, print, lambda device: recorder) is None
    assert recorder.num_recordings == 0


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ranks_go_on_without_graphs_where_the_model_cannot_be_recorded(
    num_ranks: int, model: ModelShard, cache: KVCache
) -> None:
    said: list[str] = []
    assert record_graphs(with_fields(SPEC, num_ranks=num_ranks), model, cache, said.append, FailingRecorder) is None
    why = "because they cannot be recorded: operation not permitted when stream is capturing"
    assert said == [f"decode steps are computed without graphs, {why}"]


def test_graphs_that_were_asked_for_are_not_done_without(model: ModelShard, cache: KVCache) -> None:
    with pytest.raises(ModelLoadError, match=r"^decode steps cannot be recorded as graphs: operation not permitted"):
        record_graphs(with_fields(SPEC, decode_graphs="on"), model, cache, print, FailingRecorder)


def test_one_rank_of_several_without_memory_for_graphs_says_what_helps(model: ModelShard, cache: KVCache) -> None:
    """The others would wait for it."""
    with pytest.raises(ModelLoadError, match=r"2\.00 GiB \(a smaller --gpu-memory-fraction .*; --decode-graphs off "):
        record_graphs(with_fields(SPEC, num_ranks=2), model, cache, print, FullRecorder)


def test_what_may_have_happened_to_one_rank_alone_ends_the_start(model: ModelShard, cache: KVCache) -> None:
    with pytest.raises(ModelLoadError, match="unhandled cuda error"):
        record_graphs(with_fields(SPEC, num_ranks=2), model, cache, print, LostRecorder)


def test_a_single_rank_without_memory_for_graphs_goes_on_without(model: ModelShard, cache: KVCache) -> None:
    said: list[str] = []
    assert record_graphs(SPEC, model, cache, said.append, FullRecorder) is None
    assert "--decode-graphs off takes less" in said[0]
