"""What loads, what is refused and in which words, and what the fingerprint tells apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig
from transformers.models.llama import modeling_llama

from baton_serve.workers.rank.cache.attention import NAME
from baton_serve.workers.rank.cache.kv_cache import CacheShape, KVCache, count_blocks, gathered
from baton_serve.workers.rank.device import assign_device, choose_device, gpu_of
from baton_serve.workers.rank.distributed import backend_for
from baton_serve.workers.rank.layers.linear import PackedLinear, is_available
from baton_serve.workers.rank.layers.positions import max_positions
from baton_serve.workers.rank.loading import probe
from baton_serve.workers.rank.loading.config_checks import check_config, check_split
from baton_serve.workers.rank.loading.probe import own_logits, probe_layers, prove_equal, prove_in_float32
from baton_serve.workers.rank_protocol.errors import CacheError, ModelLoadError, UnsupportedModelError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits import tiny_models
from tests.kits.rank.driver import load
from tests.kits.rank.models import Folders, Models

SHAPE = CacheShape(num_kv_heads=2, num_layers=3, block_size=16, head_dim=8, dtype=torch.float32)


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("gemma2", "soft-capped attention scores"),
        ("gpt_oss", "attention sinks"),
        ("bloom", "its attention cannot be replaced"),
        ("mamba", "recurrent"),
    ],
)
def test_models_are_refused_by_name(architecture: str, reason: str, folder_of: Folders) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"^model type '{architecture}' is not supported: .*{reason}"):
        load(folder_of(architecture))


@pytest.mark.parametrize(
    ("model_type", "fields", "reason"),
    [
        ("t5", {}, "encoder-decoder"),
        ("llava", {}, "multi-modal"),
        ("gemma3", {}, "multi-modal"),
        ("deepseek_v3", {}, "multi-head latent attention"),
        ("jamba", {}, "recurrent"),
        ("qwen3_next", {}, "linear_attention"),
        ("llama4_text", {}, "chunked attention"),
        ("gemma3n_text", {}, "share their KV cache"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("vit", {}, "no decoder-only language model"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "type dynamic"),
        ("llama", {"rope_parameters": {"rope_type": "unheard_of", "rope_theta": 1e4}}, "type unheard_of"),
    ],
)
def test_configs_are_refused_by_name(model_type: str, fields: dict[str, Any], reason: str) -> None:
    from baton_serve.workers.rank.loading.model import _model_class

    config = AutoConfig.for_model(model_type, **fields)
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        check_config(config, _model_class(config))
    assert "\n" not in str(caught.value)


def test_a_window_that_only_the_mask_knows_is_refused(tmp_path: Path) -> None:
    # GPT-2 has no windows: its attention never hears of the one that the config asks for.
    folder = tiny_models.build(tmp_path, "gpt2", sliding_window=8)
    with pytest.raises(UnsupportedModelError, match="sliding window that does not reach"):
        load(folder)


def test_other_logits_than_the_models_own_are_refused(
    model_of: Models, folder_of: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama")
    own = own_logits(AutoModelForCausalLM.from_pretrained(folder_of("llama"), dtype=torch.float32).eval())
    prove_equal(model.module, model.cache_shape, own)
    monkeypatch.setattr(KVCache, "write", lambda *_: None)
    with pytest.raises(UnsupportedModelError, match="other logits"):
        prove_equal(model.module, model.cache_shape, own)


def test_a_difference_that_roundings_hide_is_found_in_float32(
    folder_of: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose own attention scales its scores otherwise than it says."""
    eager = modeling_llama.eager_attention_forward

    def scaled_otherwise(module: Any, query: torch.Tensor, *arguments: Any, scaling: float, **named: Any) -> Any:
        return eager(module, query, *arguments, scaling=scaling * 0.97, **named)

    shape = load(folder_of("llama"), dtype="bfloat16").cache_shape
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", scaled_otherwise)
    own = AutoModelForCausalLM.from_pretrained(folder_of("llama"), dtype=torch.bfloat16, attn_implementation=NAME)
    prove_equal(own.eval(), shape, own_logits(own))
    with pytest.raises(UnsupportedModelError, match=r"other logits than its own in torch\.float32"):
        load(folder_of("llama"), dtype="bfloat16")


def test_a_model_keeps_its_numbers_when_it_is_compared_in_float32(folder_of: Folders) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder_of("llama"), dtype=torch.bfloat16, attn_implementation=NAME)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prove_in_float32(model.eval(), probe_layers(model, 16), None)
    after = model.state_dict()
    assert all(
        torch.equal(after[name], tensor) and after[name].dtype == tensor.dtype for name, tensor in before.items()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_packed_layer_with_another_product_is_refused(
    dtype: str, folder_of: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_available(getattr(torch, dtype)):
        pytest.skip("this processor has no packed products of the type")
    forward = PackedLinear.forward
    load(folder_of("llama"), dtype=dtype)
    monkeypatch.setattr(PackedLinear, "forward", lambda self, inputs: forward(self, inputs).roll(1, -1))
    with pytest.raises(UnsupportedModelError, match="other logits"):
        load(folder_of("llama"), dtype=dtype)


def test_a_missing_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        load(tmp_path)


def test_a_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match=r"^cannot load the config of nobody/has-this-model: ") as caught:
        load("nobody/has-this-model")
    assert "\n" not in str(caught.value)


def test_an_unknown_model_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "perpetuum"}))
    with pytest.raises(ModelLoadError, match="perpetuum") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_not_made_up(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path, "llama")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lack 1 tensors, first model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


def test_graphs_that_are_not_possible_are_refused_before_weights_are_loaded(folder_of: Folders) -> None:
    said: list[str] = []
    with pytest.raises(ModelLoadError, match=r"^decode graphs are wanted, but they need a GPU$"):
        load(folder_of("llama"), progress=said.append, decode_graphs="on")
    assert not said


def test_model_length(folder_of: Folders) -> None:
    assert load(folder_of("llama"), max_model_len=100).max_model_len == 100
    with pytest.raises(ModelLoadError, match="5000 is more than the model's 4096"):
        load(folder_of("llama"), max_model_len=5000)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}}, 4096),
        ({"rope_scaling": {"type": "yarn", "factor": 2.5}}, 2560),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 2048),
        # These configs count the factor already.
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}}, 1024),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
            1024,
        ),
        ({}, 1024),
    ],
)
def test_a_stretched_length_counts(config: dict[str, Any], length: int) -> None:
    """As vLLM counts it."""
    assert max_positions(LlamaConfig(max_position_embeddings=1024, **config)) == length


def test_what_counts_its_factor_already_is_not_stretched_twice() -> None:
    linear = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}
    assert max_positions(Gemma3TextConfig(max_position_embeddings=1024, rope_parameters=linear)) == 1024


@pytest.mark.parametrize(
    "stretched",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda stretched: stretched["rope_type"],
)
def test_rope_types_that_are_known_to_work_load(stretched: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path / "model", "llama", max_position_embeddings=1024, rope_scaling=stretched)
    assert load(folder).max_model_len >= 1024


def test_a_model_that_does_not_run_in_float32_is_said_to_be_compared_in_its_own_type_alone(
    folder_of: Folders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mixing(_model: Any) -> list[torch.Tensor]:
        raise RuntimeError("expected m1 and m2 to have the same dtype")

    monkeypatch.setattr(probe, "own_logits", mixing)
    load(folder_of("llama"), dtype="bfloat16")
    assert "in half precision alone: expected m1 and m2" in caplog.text


def test_a_stretched_model_serves_all_of_its_length(tmp_path: Path) -> None:
    """Not only the length that it was trained for first."""
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    folder = tiny_models.build(tmp_path / "yarn", "llama", max_position_embeddings=1024, rope_scaling=stretched)
    assert load(folder).max_model_len == 4096
    assert load(folder, max_model_len=3000).max_model_len == 3000


@pytest.mark.parametrize("name", ["gpu", "mps", "meta"])
def test_devices_that_are_none(name: str) -> None:
    with pytest.raises(ModelLoadError, match=name):
        choose_device(name)


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    devices = [gpu_of(rank, 2, 4) for rank in range(2)]
    assert devices == [torch.device("cuda", index) for index in range(2)]
    assert {backend_for(device) for device in devices} == {"nccl"}
    with pytest.raises(ModelLoadError, match=r"^4 ranks need a GPU each, and there are 3$"):
        gpu_of(0, 4, 3)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert gpu_of(0, 1, 1) == torch.device("cuda", 0)
    with pytest.raises(ModelLoadError, match=r"^2 ranks on GPUs need a torch with NCCL"):
        gpu_of(0, 2, 2)


def test_ranks_that_would_share_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_serve.workers.rank.device.choose_device", torch.device)
    spec = RankSpec(model="m", engine_id="e", num_ranks=2, device="cuda:0")
    with pytest.raises(ModelLoadError, match=r"^2 ranks need a GPU each, and device cuda:0 is one"):
        assign_device(spec)


@pytest.mark.parametrize(
    ("model_type", "num_ranks", "reason"),
    [
        ("qwen3", 5, "5 ranks do not divide its 32 attention heads and its 32 KV heads"),
        ("mixtral", 16, "16 ranks do not divide its 8 KV heads"),
        ("gpt2", 2, "no tensor-parallel plan"),
        ("phi3", 2, "does not split q_proj, k_proj, v_proj by heads"),
        ("olmo2", 2, "does not split q_proj, k_proj, v_proj by heads"),
    ],
)
def test_models_that_cannot_be_split_are_refused_by_name(model_type: str, num_ranks: int, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        check_split(AutoConfig.for_model(model_type), num_ranks)
    assert str(caught.value).startswith(f"model type '{model_type}' cannot be split over {num_ranks} ranks: ")


def test_fingerprints_tell_weights_and_configs_apart(folder_of: Folders, tmp_path: Path) -> None:
    original = load(folder_of("llama")).weights_fingerprint
    again = load(tiny_models.build(tmp_path / "again", "llama"))
    other_seed = load(tiny_models.build(tmp_path / "seed", "llama", seed=1))
    other_config = load(tiny_models.build(tmp_path / "config", "llama", rms_norm_eps=1e-4))
    assert again.weights_fingerprint == original
    assert len({original, other_seed.weights_fingerprint, other_config.weights_fingerprint}) == 3


def test_a_block_is_one_contiguous_piece() -> None:
    cache = KVCache(SHAPE, 5, torch.device("cpu"))
    assert cache.tensor.shape == (5, 2, 3, 2, 16, 8)
    assert cache.tensor[3].is_contiguous()
    assert cache.tensor[3].data_ptr() - cache.address == 3 * SHAPE.block_bytes
    assert SHAPE.block_bytes == 2 * 3 * 2 * 16 * 8 * 4


def test_what_is_written_is_gathered() -> None:
    cache = KVCache(SHAPE, 4, torch.device("cpu"))
    key, value = torch.randn(2, 2, 1, 8)
    slot = (2 * SHAPE.pieces_per_block + torch.arange(2) * SHAPE.pieces_per_head) * 16 + 5
    cache.write(1, slot, key, value)
    assert torch.equal(cache.tensor[2, :, 1, 0, 5], key[:, 0])
    assert torch.equal(cache.tensor[2, :, 1, 1, 5], value[:, 0])
    keys, values = gathered(cache.tensor[:, :, 1], torch.tensor([3, 2]))
    assert keys.shape == (2, 32, 8)
    assert torch.equal(keys[:, 16 + 5], key[:, 0])
    assert torch.equal(values[:, 16 + 5], value[:, 0])
    assert float(keys.abs().sum()) == pytest.approx(float(key.abs().sum()))


def test_the_budget_decides_the_number_of_blocks() -> None:
    cpu = torch.device("cpu")
    spec = RankSpec(model="m", engine_id="e")
    assert count_blocks(spec, SHAPE, cpu) == (1 << 30) // SHAPE.block_bytes
    budget = RankSpec(model="m", engine_id="e", kv_cache_bytes=10 * SHAPE.block_bytes + 1)
    assert count_blocks(budget, SHAPE, cpu) == 10
    assert count_blocks(RankSpec(model="m", engine_id="e", num_blocks=7, kv_cache_bytes=1), SHAPE, cpu) == 7
    halves = RankSpec(model="m", engine_id="e", num_ranks=2, kv_cache_bytes=10 * SHAPE.block_bytes)
    assert count_blocks(halves, SHAPE, cpu) == 5
    assert count_blocks(RankSpec(model="m", engine_id="e", num_ranks=2), SHAPE, cpu) == (1 << 29) // SHAPE.block_bytes
    with pytest.raises(CacheError, match="no room for one block"):
        count_blocks(RankSpec(model="m", engine_id="e", kv_cache_bytes=100), SHAPE, cpu)


def test_a_cache_that_does_not_fit() -> None:
    with pytest.raises(
        CacheError, match=r"no room for a KV cache of .* on cpu: \d+ bytes are more than this machine has"
    ):
        KVCache(SHAPE, 1 << 45, torch.device("cpu"))
