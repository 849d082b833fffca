"""What a rank does when steps cannot be recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from msgspec.structs import replace as with_fields

from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.device import RankDevice
from baton_serve.workers.rank.graphs.decode_graphs import DecodeGraphs
from baton_serve.workers.rank.graphs.prefill_graphs import PrefillGraphs
from baton_serve.workers.rank.graphs.setup import record_graphs
from baton_serve.workers.rank_protocol.errors import ModelLoadError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits.rank.kernels import PlainKernel
from tests.kits.rank.recorders import PlainRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.workers.rank.graphs.port import Recorder, Replay
    from baton_serve.workers.rank.in_place.port import RaggedRows
    from baton_serve.workers.rank.loading.model import ModelShard

SPEC = RankSpec(model="m", engine_id="e", max_num_seqs=3, max_num_batched_tokens=40)


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


def test_graphs_for_every_size_are_recorded_at_the_start(model: ModelShard, cache: KVCache) -> None:
    recorder, said = PlainRecorder(), list[str]()

    def make(device: torch.device) -> Recorder:
        return recorder

    graphs = record_graphs(SPEC, model, cache, said.append, make)
    assert repr(graphs) == "[<DecodeGraphs of 1, 2, 3 rows>, <PrefillGraphs of 16, 32, 40 tokens>]"
    assert recorder.num_recordings == 6
    assert said[0].startswith("recorded decode graphs for up to 3 rows in ")
    assert said[1].startswith("recorded prefill graphs for up to 40 tokens in ")


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_each_kind_can_be_left_out(kind: str, model: ModelShard, cache: KVCache) -> None:
    (graphs,) = record_graphs(with_fields(SPEC, **{f"{kind}_graphs": "off"}), model, cache, print, _plain_recorder)
    assert isinstance(graphs, PrefillGraphs if kind == "decode" else DecodeGraphs)


def test_on_a_cpu_steps_with_chunks_are_not_recorded(model: ModelShard, cache: KVCache) -> None:
    on_cpu = replace(model, rank_device=RankDevice(torch.device("cpu")))
    assert [type(one) for one in record_graphs(SPEC, on_cpu, cache, print, _plain_recorder)] == [DecodeGraphs]
    with pytest.raises(ModelLoadError, match=r"^prefill graphs are wanted, but they need a GPU"):
        record_graphs(with_fields(SPEC, prefill_graphs="on"), on_cpu, cache, print, _plain_recorder)


class WrongKernel(PlainKernel):
    """A kernel whose rows of any length miss their first token, once they have earlier ones."""

    def attend_ragged(
        self,
        query: torch.Tensor,
        blocks: torch.Tensor,
        rows: RaggedRows,
        scaling: float,
        window: int | None,
        out: torch.Tensor,
    ) -> None:
        tiles = rows.tiles.clone()
        tiles[:, 3] -= (tiles[:, 3] > 0).to(torch.int32)
        super().attend_ragged(query, blocks, replace(rows, tiles=tiles), scaling, window, out)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_wrong_attention_is_not_recorded(num_ranks: int, model: ModelShard, cache: KVCache) -> None:
    """All ranks know it, so they need not end."""
    spec, said = with_fields(SPEC, num_ranks=num_ranks), list[str]()
    wrong = replace(model, kernel=WrongKernel())
    assert [type(one) for one in record_graphs(spec, wrong, cache, said.append, _plain_recorder)] == [DecodeGraphs]
    why = "because they cannot be recorded: the kernel's attention for rows of any length is wrong"
    assert said[1] == f"prefill steps are computed without graphs, {why}"
    with pytest.raises(ModelLoadError, match=r"^prefill steps cannot be recorded as graphs: the kernel's attention"):
        record_graphs(with_fields(spec, prefill_graphs="on"), wrong, cache, print, _plain_recorder)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4, 1024])
def test_caches_of_any_size_are_enough(num_blocks: int, num_rows: int, model: ModelShard) -> None:
    """The attention is compared as far as there is room for it. The largest has several contexts of the model."""
    assert num_blocks < 1024 or num_blocks * model.cache_shape.block_size > 3 * model.max_model_len
    made = KVCache(model.cache_shape, num_blocks, torch.device("cpu"), with_spare=True)
    spec = with_fields(SPEC, max_num_seqs=num_rows)
    (_, graphs) = record_graphs(spec, model, made, print, _plain_recorder)
    assert repr(graphs) == "<PrefillGraphs of 16, 32, 40 tokens>"


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_wrong_attention_is_found_in_a_single_row(num_rows: int, model: ModelShard, cache: KVCache) -> None:
    spec, wrong = with_fields(SPEC, max_num_seqs=num_rows), replace(model, kernel=WrongKernel())
    assert [type(one) for one in record_graphs(spec, wrong, cache, print, _plain_recorder)] == [DecodeGraphs]


def test_what_keeps_the_device_busy_is_not_worth_a_graph(
    model: ModelShard, cache: KVCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillGraphs, "_is_worth_it", lambda graphs, size: size not in {256, 1024})
    spec = with_fields(SPEC, max_num_batched_tokens=5000)
    (_, graphs) = record_graphs(spec, model, cache, print, _plain_recorder)
    assert repr(graphs) == "<PrefillGraphs of 16, 32, 64, 128 tokens>"


def test_one_rank_goes_on_without(model: ModelShard, cache: KVCache) -> None:
    said: list[str] = []
    assert record_graphs(SPEC, model, cache, said.append, FailingRecorder) == []
    why = "steps are computed without graphs, because they cannot be recorded: operation not permitted"
    assert [line.partition(" when")[0] for line in said] == [f"decode {why}", f"prefill {why}"]


def test_after_a_failure_another_recorder_is_made(model: ModelShard, cache: KVCache) -> None:
    recorders: list[Recorder] = [FailingRecorder(cache.device), PlainRecorder()]

    def make(device: torch.device) -> Recorder:
        return recorders.pop(0)

    assert [type(one) for one in record_graphs(SPEC, model, cache, print, make)] == [PrefillGraphs]


def test_who_lacks_memory_is_told_what_helps(model: ModelShard, cache: KVCache) -> None:
    class Full(PlainRecorder):
        def __call__(self, work: Callable[[], None]) -> Replay:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(ModelLoadError, match=r"2\.00 GiB \(a smaller --gpu-memory-fraction .*; --prefill-graphs off "):
        record_graphs(
            with_fields(SPEC, decode_graphs="off", prefill_graphs="on"), model, cache, print, lambda device: Full()
        )


@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.parametrize("several", [True, False])
def test_several_ranks_or_who_asked_for_graphs_do_not(
    kind: str, *, several: bool, model: ModelShard, cache: KVCache
) -> None:
    other = "prefill" if kind == "decode" else "decode"
    wanted = {f"{kind}_graphs": "auto" if several else "on", f"{other}_graphs": "off"}
    spec = with_fields(SPEC, num_ranks=2 if several else 1, **wanted)
    with pytest.raises(ModelLoadError, match=f"^{kind} steps cannot be recorded as graphs: operation not permitted"):
        record_graphs(spec, model, cache, print, FailingRecorder)


def _plain_recorder(device: torch.device) -> Recorder:
    return PlainRecorder()
