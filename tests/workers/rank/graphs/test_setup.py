"""What a rank does when steps cannot be recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from msgspec.structs import replace as with_fields

from tests.kits.rank.kernels import PlainKernel
from tests.kits.rank.recorders import PlainRecorder
from workers.rank.cache.kv_cache import KVCache
from workers.rank.device import RankDevice
from workers.rank.graphs.setup import record_graphs
from workers.rank_protocol.errors import ModelLoadError
from workers.rank_protocol.spec import RankSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.rank.graphs.port import Recorder, Replay
    from workers.rank.loading.model import ModelShard

SPEC = RankSpec(model="m", engine_id="e", max_num_seqs=3)


class FailingRecorder:
    """As on a GPU, for a model that waits for it."""

    is_quick = False

    def __init__(self, device: torch.device) -> None:
        pass

    def __call__(self, work: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing\nDetails.")


@pytest.fixture
def model(model_of: Callable[..., ModelShard]) -> ModelShard:
    """A model that says it is on a GPU; its tensors are not."""
    on_gpu = RankDevice(torch.device("cuda", 0))
    return replace(model_of("llama"), kernel=PlainKernel(), rank_device=on_gpu)


@pytest.fixture
def cache(model: ModelShard) -> KVCache:
    return KVCache(model.cache_shape, 4, torch.device("cpu"), with_spare=True)


def test_graphs_for_every_number_of_rows_are_recorded_at_the_start(model: ModelShard, cache: KVCache) -> None:
    recorder, said = PlainRecorder(), list[str]()

    def make(device: torch.device) -> Recorder:
        return recorder

    graphs = record_graphs(SPEC, model, cache, said.append, make)
    assert repr(graphs) == "<DecodeGraphs of 1, 2, 3 rows>"
    assert recorder.num_recordings == 3
    assert said[0].startswith("recorded decode graphs for up to 3 rows in ")


def test_one_rank_goes_on_without(model: ModelShard, cache: KVCache) -> None:
    said: list[str] = []
    assert record_graphs(SPEC, model, cache, said.append, FailingRecorder) is None
    (line,) = said
    assert line.startswith("decoding without graphs, because steps cannot be recorded: operation not permitted")


@pytest.mark.parametrize("spec", [with_fields(SPEC, decode_graphs="on"), with_fields(SPEC, num_ranks=2)])
def test_several_ranks_or_who_asked_for_graphs_do_not(spec: RankSpec, model: ModelShard, cache: KVCache) -> None:
    with pytest.raises(ModelLoadError, match=r"^decode steps cannot be recorded as graphs: operation not permitted"):
        record_graphs(spec, model, cache, print, FailingRecorder)
