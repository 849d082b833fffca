"""For which numbers of rows there are graphs, and what a rank does when steps cannot be recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec.structs import replace as with_fields

from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.graphs.cuda_recorder import Recorder, Replay
from baton_serve.workers.rank.graphs.decode_graphs import graph_sizes
from baton_serve.workers.rank.graphs.setup import record_graphs
from baton_serve.workers.rank.loading.model import ModelShard
from baton_serve.workers.rank_protocol.errors import ModelLoadError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits.rank.kernels import PlainKernel
from tests.kits.rank.models import Models
from tests.kits.rank.recorders import PlainRecorder

SPEC = RankSpec(model="m", engine_id="e", max_num_seqs=3)


#: As on a GPU: for a model that waits for it, of which another rank has gone, and without memory.
WAITS = RuntimeError("operation not permitted when stream is capturing")
LOST = RuntimeError("NCCL error: unhandled cuda error")
HIDDEN = RuntimeError("operation failed due to a previous error during capture")
HIDDEN.__context__ = torch.OutOfMemoryError("CUDA out of memory")
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def failing(error: Exception) -> Callable[[torch.device], Recorder]:
    """What makes a recorder that raises the error."""

    def record(work: Callable[[], None]) -> Replay:
        raise error

    return lambda device: record


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


@pytest.mark.parametrize(
    ("num_ranks", "error", "why"),
    [
        (1, WAITS, "operation not permitted when stream is capturing"),
        (2, WAITS, "operation not permitted when stream is capturing"),
        (1, FULL, r".*; --decode-graphs off takes less\)"),
    ],
)
def test_ranks_go_on_without_graphs_where_the_model_cannot_be_recorded(
    num_ranks: int, error: Exception, why: str, model: ModelShard, cache: KVCache
) -> None:
    said: list[str] = []
    assert record_graphs(with_fields(SPEC, num_ranks=num_ranks), model, cache, said.append, failing(error)) is None
    (line,) = said
    assert re.fullmatch(f"decode steps are computed without graphs, because they cannot be recorded: {why}", line)


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"decode_graphs": "on"}, WAITS, "operation not permitted"),
        # One rank of several, for which the others would wait.
        ({"num_ranks": 2}, FULL, r".*2\.00 GiB \(a smaller --gpu-memory-fraction .*; --decode-graphs off "),
        ({"num_ranks": 2}, HIDDEN, ".*previous error during capture"),
        ({"num_ranks": 2}, LOST, ".*unhandled cuda error"),
    ],
)
def test_graphs_that_are_not_done_without_end_the_start(
    fields: dict[str, Any], error: Exception, why: str, model: ModelShard, cache: KVCache
) -> None:
    with pytest.raises(ModelLoadError, match=f"^decode steps cannot be recorded as graphs: {why}"):
        record_graphs(with_fields(SPEC, **fields), model, cache, print, failing(error))


@pytest.mark.parametrize(
    ("max_rows", "expected"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (64, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]),
        (100, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96, 100]),
    ],
)
def test_sizes_end_with_the_largest_batch(max_rows: int, expected: list[int]) -> None:
    assert graph_sizes(max_rows) == expected


def test_there_is_a_bound() -> None:
    assert graph_sizes(100_000) == graph_sizes(256)
    assert graph_sizes(256)[-1] == 256
