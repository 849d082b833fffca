"""Which attention a rank uses, whether its decode steps are graphs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from msgspec.structs import replace as with_fields

from tests.kits.rank.kernels import PlainKernel
from workers.rank.device import RankDevice
from workers.rank.graphs.setup import wants_graphs
from workers.rank.in_place.choice import choose_kernel
from workers.rank_protocol.errors import ModelLoadError
from workers.rank_protocol.spec import RankSpec

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
SPEC = RankSpec(model="m", engine_id="e")
ON = with_fields(SPEC, decode_graphs="on")
GPU = RankDevice(torch.device("cuda", 0), "nccl")


@pytest.mark.parametrize("wanted", ["auto", "gather"])
def test_a_cpu_gathers(wanted: str) -> None:
    said: list[str] = []
    assert choose_kernel(wanted, CPU, said.append) is None
    assert said == []


def test_attention_in_place_on_a_cpu_is_refused() -> None:
    with pytest.raises(
        ModelLoadError, match=r"^attention in-place is wanted, but the model is on cpu, and it needs a GPU"
    ):
        choose_kernel("in-place", CPU, print)


@pytest.mark.parametrize("wanted", ["auto", "in-place"])
def test_a_gpu_without_a_compiler(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    said: list[str] = []
    if wanted == "auto":
        assert choose_kernel(wanted, GPU.device, said.append) is None
        assert said == [
            "attention gathers keys and values, because Triton needs a C compiler, and there is neither gcc nor clang"
        ]
    else:
        with pytest.raises(ModelLoadError, match="Triton needs a C compiler"):
            choose_kernel(wanted, GPU.device, said.append)


def test_graphs_on_a_cpu_are_refused() -> None:
    assert not wants_graphs(SPEC, RankDevice(CPU), None)
    with pytest.raises(ModelLoadError, match=r"^decode graphs are wanted, but the model is on cpu, and they need"):
        wants_graphs(ON, RankDevice(CPU), None)


def test_graphs_need_attention_in_place() -> None:
    assert wants_graphs(SPEC, GPU, PlainKernel())
    assert not wants_graphs(SPEC, GPU, None)
    with pytest.raises(ModelLoadError, match="they need attention in-place"):
        wants_graphs(ON, GPU, None)


def test_ranks_without_nccl_have_no_graphs() -> None:
    two, gloo = with_fields(ON, num_ranks=2), replace(GPU, backend="gloo")
    assert wants_graphs(two, GPU, PlainKernel())
    assert not wants_graphs(with_fields(two, decode_graphs="auto"), gloo, PlainKernel())
    with pytest.raises(ModelLoadError, match="without NCCL"):
        wants_graphs(two, gloo, PlainKernel())


def test_no_graphs_where_they_are_off() -> None:
    assert not wants_graphs(with_fields(SPEC, decode_graphs="off"), GPU, PlainKernel())
