"""Which attention a rank uses, whether its decode steps are graphs, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from msgspec.structs import replace as with_fields

from baton_serve.workers.rank.gpu import support
from baton_serve.workers.rank.graphs.setup import wants_graphs
from baton_serve.workers.rank.in_place.choice import choose_kernel
from baton_serve.workers.rank.layers.row_programs import programs_for
from baton_serve.workers.rank_protocol.errors import ModelLoadError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits.rank.kernels import PlainKernel

Setting = Literal["auto", "on", "off"]

CPU = torch.device("cpu")
SPEC = RankSpec(model="m", engine_id="e")
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("wanted", ["auto", "gather"])
def test_a_cpu_has_no_program_of_triton(wanted: str) -> None:
    said: list[str] = []
    assert choose_kernel(wanted, CPU, said.append) is None
    assert said == []


def test_attention_in_place_on_a_cpu_is_refused() -> None:
    with pytest.raises(
        ModelLoadError, match=r"^attention in-place is wanted, but the model is on cpu, and a GPU is needed"
    ):
        choose_kernel("in-place", CPU, print)


@pytest.fixture
def asked_again() -> Iterator[None]:
    """What is known of Triton is found out anew, in the test and after it."""
    support.missing_triton.cache_clear()
    yield
    support.missing_triton.cache_clear()


@pytest.mark.usefixtures("asked_again")
@pytest.mark.parametrize("wanted", ["auto", "in-place"])
def test_a_gpu_without_a_compiler(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    said: list[str] = []
    if wanted == "auto":
        assert choose_kernel(wanted, GPU, said.append) is None
        assert said == [
            "attention gathers keys and values, because Triton needs a C compiler, and there is neither gcc nor clang"
        ]
    else:
        with pytest.raises(ModelLoadError, match="Triton needs a C compiler"):
            choose_kernel(wanted, GPU, said.append)


@pytest.mark.usefixtures("asked_again")
def test_a_triton_that_does_not_compile_is_one_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs Triton: pip install triton")

    def fail(*given: object) -> None:
        raise RuntimeError("no Python.h")

    monkeypatch.setattr(support, "_try", fail)
    monkeypatch.setenv("CC", "cc")
    assert support.missing(GPU) == "Triton does not compile (RuntimeError: no Python.h)"
    assert programs_for(GPU) is None


def test_graphs_need_a_gpu_and_attention_in_place() -> None:
    assert wants_graphs(SPEC, GPU, PlainKernel())
    assert not wants_graphs(with_fields(SPEC, decode_graphs="off"), GPU, PlainKernel())
    for device, kernel, why in ((GPU, None, "attention in-place"), (CPU, PlainKernel(), "a GPU")):
        assert not wants_graphs(SPEC, device, kernel)
        with pytest.raises(ModelLoadError, match=f"^decode graphs are wanted, but they need {why}"):
            wants_graphs(with_fields(SPEC, decode_graphs="on"), device, kernel)
