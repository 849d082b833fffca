"""Packed layers compute what the model's own layers do."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import ref

import pytest
import torch
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from baton_serve.workers.rank.cpu.support import CpuRows
from baton_serve.workers.rank.layers.linear import LinearPart, PackedLinear, SharedProduct, is_available
from baton_serve.workers.rank.layers.norm import FastRMSNorm, replace_norms
from baton_serve.workers.rank.layers.packing import pack
from baton_serve.workers.rank.layers.row_programs import RowPrograms
from tests.kits.rank.models import Folders

#: The programs that a device may have: none on a CPU.
PROGRAMS = pytest.mark.parametrize("programs", [None, CpuRows()], ids=["torch", "programs"])

pytestmark = pytest.mark.skipif(not is_available(torch.float32), reason="torch without oneDNN")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [0, 1, 7, 300])
def test_a_packed_layer_gives_the_same_product(dtype: torch.dtype, num_tokens: int) -> None:
    if not is_available(dtype):
        pytest.skip("this processor has no packed products of the type")
    weight, bias = torch.randn(24, 40, dtype=dtype), torch.randn(24, dtype=dtype)
    inputs = torch.randn(1, num_tokens, 40, dtype=dtype)
    assert torch.allclose(PackedLinear(weight, bias)(inputs), linear(inputs, weight, bias), rtol=0.02, atol=0.02)


def test_a_token_has_the_same_product_among_any_others() -> None:
    layer, inputs = PackedLinear(torch.randn(96, 64), None), torch.randn(33, 64)
    together = layer(inputs)
    for num_tokens in (1, 2, 5, 16):
        assert torch.equal(layer(inputs[:num_tokens]), together[:num_tokens])


def test_layers_with_one_input_share_a_product() -> None:
    layers = [torch.nn.Linear(16, size, bias=False) for size in (8, 4, 4)]
    shared = SharedProduct(layers)
    inputs = torch.randn(1, 3, 16)
    parts = [LinearPart(shared, index)(inputs) for index in range(3)]
    for part, layer in zip(parts, layers, strict=True):
        assert torch.allclose(part, layer(inputs), atol=1e-5)
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1


def test_another_input_is_not_given_the_product_of_the_first() -> None:
    layers = [torch.nn.Linear(16, 8) for _ in range(2)]
    shared = SharedProduct(layers)
    one, other = torch.randn(2, 16), torch.randn(2, 16)
    shared.part(0, one)
    assert torch.allclose(shared.part(1, other), layers[1](other), atol=1e-5)


def test_inputs_and_products_are_dropped_although_the_last_layer_is_not_called() -> None:
    shared = SharedProduct([torch.nn.Linear(16, 8) for _ in range(2)])
    inputs = torch.randn(2, 16)
    part = shared.part(0, inputs)
    held, product = ref(inputs), ref(part)
    del part
    assert product() is not None, "the product must wait for the last layer"
    del inputs
    assert held() is None
    assert product() is None


@PROGRAMS
def test_a_packed_model_gives_the_same_logits(folder_of: Folders, programs: RowPrograms | None) -> None:
    for architecture in ("llama", "qwen2", "qwen3"):
        model = AutoModelForCausalLM.from_pretrained(folder_of(architecture)).eval()
        tokens = torch.arange(9)[None]
        expected = model(tokens).logits
        pack(model, programs)
        assert torch.allclose(model(tokens).logits, expected, atol=1e-4)
        assert not any(type(layer) is torch.nn.Linear for layer in model.modules())
        assert any(isinstance(layer, LinearPart) for layer in model.modules())


@PROGRAMS
def test_only_norms_that_compute_the_same_are_replaced(programs: RowPrograms | None) -> None:
    model = torch.nn.ModuleList([LlamaRMSNorm(32, eps=1e-5), GemmaRMSNorm(32, eps=1e-5)])
    replace_norms(model, programs)
    assert [type(layer) for layer in model] == [FastRMSNorm, GemmaRMSNorm]


class AddsEpsilonOutsideRMSNorm(LlamaRMSNorm):
    """Differs for small inputs only."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        root = inputs.float().square().mean(-1, keepdim=True).sqrt()
        return (self.weight * inputs / (root + self.variance_epsilon)).to(inputs.dtype)


class ClipsRMSNorm(LlamaRMSNorm):
    """Differs for large inputs only."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        clipped: torch.Tensor = super().forward(inputs.clamp(-10, 10))
        return clipped


class GatedRMSNorm(LlamaRMSNorm):
    """Wants a second input."""

    def forward(self, inputs: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = super().forward(inputs)
        return scaled * gate


class HeadsRMSNorm(LlamaRMSNorm):
    """Wants inputs of another shape."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows, heads, tokens, size = inputs.shape
        scaled: torch.Tensor = super().forward(inputs.reshape(rows * heads * tokens, size))
        return scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [16, 64, 576, 4096])
@PROGRAMS
def test_norms_of_all_sizes_and_types_are_replaced(dtype: torch.dtype, size: int, programs: RowPrograms | None) -> None:
    layer = LlamaRMSNorm(size, eps=1e-6)
    layer.weight.copy_(torch.linspace(-0.1, 3, size))
    model = torch.nn.ModuleList([layer.to(dtype)])
    replace_norms(model, programs)
    assert isinstance(model[0], FastRMSNorm)
    assert model[0].weight.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [AddsEpsilonOutsideRMSNorm, ClipsRMSNorm, GatedRMSNorm, HeadsRMSNorm])
@PROGRAMS
def test_norms_that_compute_something_else_stay(
    norm: type[LlamaRMSNorm], dtype: torch.dtype, programs: RowPrograms | None
) -> None:
    layer = norm(32, eps=1e-6).to(dtype)
    model = torch.nn.ModuleList([layer])
    replace_norms(model, programs)
    assert model[0] is layer
    assert layer.weight.dtype == dtype
