"""Attention modules and gated layers are replaced where the replacement computes the same, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from baton_serve.workers.rank.cache.attention import NAME, register
from baton_serve.workers.rank.cpu.support import CpuRows, takes
from baton_serve.workers.rank.layers import packing
from baton_serve.workers.rank.layers.linear import is_available
from baton_serve.workers.rank.layers.modules import GatedMLP, RotaryAttention
from baton_serve.workers.rank.layers.packing import pack
from baton_serve.workers.rank.layers.trials import Inputs, is_close
from tests.kits.rank.small_llama import llama

pytestmark = pytest.mark.skipif(
    not (is_available(torch.float32) and takes(torch.float32)), reason="needs oneDNN and Numba"
)
DTYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16, marks=pytest.mark.skipif(not is_available(torch.bfloat16), reason="needs packed bfloat16")
    ),
]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    torch.manual_seed(0)
    register()
    with torch.inference_mode():
        yield


def other(kind: str, dtype: torch.dtype = torch.float32, **config: object) -> PreTrainedModel:
    """A small model of another architecture."""
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
    more = {"vocab_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "pad_token_id": 0, **config}
    made = CONFIG_MAPPING[kind](**sizes, **more)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(made, dtype=dtype, attn_implementation=NAME)
    return model.eval()


def kinds(model: torch.nn.Module) -> set[type]:
    return {type(module) for module in model.modules()} & {GatedMLP, RotaryAttention}


def logits(model: torch.nn.Module) -> torch.Tensor:
    tokens = {"input_ids": torch.arange(9)[None], "position_ids": torch.arange(7, 16)[None], "use_cache": False}
    outputs, _ = Inputs((), tokens).give(model)
    found: torch.Tensor = outputs.logits
    return found


@pytest.mark.parametrize("bias", [False, True])
def test_replaced_modules_give_the_same_logits(bias: bool) -> None:
    model = llama(bias=bias)
    expected = logits(model)
    pack(model, CpuRows())
    assert kinds(model) == {GatedMLP, RotaryAttention}
    assert torch.allclose(logits(model), expected, atol=1e-4)


def test_another_activation_stays() -> None:
    model = llama("relu")
    expected = logits(model)
    pack(model, CpuRows())
    assert kinds(model) == {RotaryAttention}
    assert torch.allclose(logits(model), expected, atol=1e-4)


def test_rotations_of_pairs_that_stand_together_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def rotate_pairs(heads: torch.Tensor) -> torch.Tensor:
        return torch.stack((-heads[..., 1::2], heads[..., ::2]), dim=-1).flatten(-2)

    monkeypatch.setattr("transformers.models.llama.modeling_llama.rotate_half", rotate_pairs)
    model = llama()
    pack(model, CpuRows())
    assert kinds(model) == {GatedMLP}


def test_rotations_of_another_size_are_refused() -> None:
    model = llama()
    pack(model, CpuRows())
    attention = model.model.layers[0].self_attn
    angles = torch.ones(1, 3, 8)
    with pytest.raises(ValueError, match="do not fit 3 tokens"):
        attention(hidden_states=torch.randn(1, 3, 48), position_embeddings=(angles, angles))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("stablelm", {"partial_rotary_factor": 0.25}),  # rotates a part of each head
        ("glm", {}),
        ("nemotron", {}),
        ("llama4_text", {"intermediate_size_mlp": 80, "num_local_experts": 2}),  # rotates complex numbers
        ("olmo", {"clip_qkv": 2.0}),  # clips numbers that are larger than any in a plain trial
        (
            "ministral3",  # scales queries by their position, from the 16th on
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "llama_4_scaling_beta": 0.1,
                    "original_max_position_embeddings": 16,
                }
            },
        ),
    ],
)
def test_attention_of_another_kind_stays(kind: str, config: dict[str, object], dtype: torch.dtype) -> None:
    model = other(kind, dtype, **config)
    pack(model, CpuRows())
    assert RotaryAttention not in kinds(model)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-2, 1.0, 10.0])
def test_an_activation_that_is_much_alike_stays(scale: float, dtype: torch.dtype) -> None:
    """For small numbers GELU and SiLU differ by less than roundings to bfloat16 do, and for large ones as well."""
    model = llama("gelu").to(dtype)
    for layer in model.model.layers:
        layer.mlp.gate_proj.weight.mul_(scale)
    pack(model, CpuRows())
    assert kinds(model) == {RotaryAttention}


def test_a_module_that_got_one_token_is_tried_with_inputs_of_all_sizes() -> None:
    scaled = Inputs((torch.ones(1, 48),), {}).scaled().only
    assert scaled is not None
    assert scaled[:, 0].tolist() == pytest.approx([0.1, 1.0, 10.0, 100.0])


def test_no_numbers_show_nothing() -> None:
    assert is_close(torch.ones(1, 4), torch.ones(1, 4))
    assert not is_close(torch.ones(0, 4), torch.ones(0, 4))


@pytest.mark.parametrize(("activation", "step"), [("silu", "_faster"), ("relu", "PackedLinear")])
def test_no_weights_are_kept_of_what_was_replaced(monkeypatch: pytest.MonkeyPatch, activation: str, step: str) -> None:
    model = llama(activation)
    layers = [ref(layer) for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    plain, alive = getattr(packing, step), []

    def count(*given: Any) -> Any:
        alive.append(sum(layer() is not None for layer in layers))
        return plain(*given)

    monkeypatch.setattr(packing, step, count)
    pack(model, CpuRows())
    assert alive[-1] <= 5, "an attention module, and the output layer"
    assert not any(layer() for layer in layers)
