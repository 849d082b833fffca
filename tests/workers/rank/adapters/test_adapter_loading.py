"""What adapters load, which are refused and in which words, and what their fingerprints tell apart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_serve.workers.rank.adapters.low_rank import LowRank
from baton_serve.workers.rank.layers import linear
from baton_serve.workers.rank.layers.linear import is_available
from baton_serve.workers.rank_protocol.errors import ModelLoadError, UnsupportedModelError
from tests.kits import tiny_adapters, tiny_models
from tests.kits.rank.driver import Driver, Job, Reference, load, prompt
from tests.kits.rank.models import Folders, Models

Adapters = Callable[[str], dict[str, Path]]

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def folder(adapters_of: Adapters, tmp_path: Path) -> Path:
    """A copy of an adapter, to be spoilt."""
    return shutil.copytree(adapters_of("llama")["first"], tmp_path / "adapter")


def change(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def fingerprints(model: Path, **adapters: Path) -> list[str]:
    return list(load(model, adapters=adapters).adapters.names.values())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"peft_type": "LOHA"}, "its peft_type is 'LOHA', not 'LORA'"),
        ({"use_dora": True}, r"it has DoRA \(use_dora\)"),
        (
            {"lora_bias": True, "bias": "all"},
            r"it has biases of its own \(lora_bias\); trained biases \(bias is 'all'\)",
        ),
        ({"modules_to_save": ["lm_head"]}, "whole modules of its own"),
        ({"trainable_token_indices": [3]}, "embeddings of its own"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "changed parameters outside of layers"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "repeated layers"),
        ({"alora_invocation_tokens": [5]}, "aLoRA"),
        ({"init_lora_weights": "pissa"}, "changed weights of the model"),
        ({"init_lora_weights": "olora"}, "changed weights of the model"),
        ({"task_type": "SEQ_CLS"}, "a task other than text"),
        ({"spectral_twist": 3}, "does not know spectral_twist"),
        ({"target_modules": ["embed_tokens"]}, r"it changes model\.embed_tokens, which is no plain linear layer"),
        ({"target_modules": ["lm_head"]}, "it changes lm_head, the output layer"),
    ],
)
def test_what_would_not_be_exact_is_refused(
    fields: dict[str, Any], reason: str, folder: Path, folder_of: Folders
) -> None:
    change(folder, **fields)
    with pytest.raises(UnsupportedModelError, match=rf"^adapter 'sql' is not supported: .*{reason}") as caught:
        load(folder_of("llama"), adapters={"sql": folder})
    assert "\n" not in str(caught.value)


def test_experts_that_are_no_layers_are_refused(folder_of: Folders, tmp_path: Path) -> None:
    adapter = tiny_adapters.build(tmp_path, folder_of("mixtral"))
    with pytest.raises(UnsupportedModelError, match=r"changed parameters outside of layers|no plain linear layer"):
        load(folder_of("mixtral"), adapters={"a": adapter})


def test_the_attention_of_a_model_with_experts_may_have_adapters(folder_of: Folders, tmp_path: Path) -> None:
    adapter = tiny_adapters.build(tmp_path, folder_of("mixtral"), target_modules=["q_proj", "v_proj", "o_proj"])
    assert len(load(folder_of("mixtral"), adapters={"a": adapter}).adapters.parts) == 6


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "adapter_config.json").unlink(), r"no adapter_config\.json"),
        (lambda folder: (folder / WEIGHTS).unlink(), r"no adapter_model\.safetensors"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "cannot load the config"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "is not an object"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"no tensors"), "cannot load the adapter 'sql'"),
        (
            lambda folder: change(folder, target_modules=["no_such_layer"]),
            "cannot load the adapter 'sql'.*no_such_layer",
        ),
        (
            lambda folder: change(folder, target_modules=["q_proj"]),
            "have 24 tensors for layers that its config does not",
        ),
        (lambda folder: change(folder, r=5), "size mismatch"),
        (lambda folder: change(folder, r="four"), "cannot load the adapter 'sql'"),
    ],
)
def test_files_that_are_no_adapter(
    spoil: Callable[[Path], object], reason: str, folder: Path, folder_of: Folders
) -> None:
    spoil(folder)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        load(folder_of("llama"), adapters={"sql": folder})
    assert "'sql'" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_tensors_are_not_made_up(folder: Path, folder_of: Folders) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"]
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ModelLoadError, match=r"adapter 'a' lack 1 layers, first model\.layers\.1\.mlp\.up_proj"):
        load(folder_of("llama"), adapters={"a": folder})


def test_tensors_of_the_model_are_not_replaced(folder: Path, folder_of: Folders) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["base_model.model.model.embed_tokens.weight"] = torch.zeros(384, 64)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UnsupportedModelError, match=r"no low-rank factors, first .*embed_tokens\.weight"):
        load(folder_of("llama"), adapters={"a": folder})


def test_equal_adapters_are_one(adapters_of: Adapters, folder: Path, folder_of: Folders) -> None:
    model = load(folder_of("llama"), adapters={"a": adapters_of("llama")["first"], "b": folder})
    assert len(model.adapters) == 1 and len(set(model.adapters.names.values())) == 1


def test_fingerprints_tell_adapters_apart(
    adapters_of: Adapters, folder: Path, folder_of: Folders, tmp_path: Path
) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"].view(torch.uint8)[3, 7] ^= 1
    changed = shutil.copytree(folder, tmp_path / "changed")
    save_file(tensors, changed / WEIGHTS)
    scaled = shutil.copytree(folder, tmp_path / "scaled")
    change(scaled, lora_alpha=9)
    harmless = shutil.copytree(folder, tmp_path / "harmless")
    change(harmless, lora_dropout=0.3, base_model_name_or_path="elsewhere", init_lora_weights="gaussian")
    first, *others, same = fingerprints(folder_of("llama"), a=folder, b=changed, c=scaled, d=harmless)
    assert same == first
    assert len({first, *others}) == 3
    other_base = tiny_models.build(tmp_path / "model", "llama", seed=1)
    assert fingerprints(other_base, a=folder) != [first]


def test_the_model_is_as_without_adapters(adapted_of: Models, model_of: Models) -> None:
    model = adapted_of("qwen3")
    assert model.weights_fingerprint == model_of("qwen3").weights_fingerprint
    assert model.module.state_dict().keys() == model_of("qwen3").module.state_dict().keys()
    assert {type(layer).__module__.partition(".")[0] for layer in model.module.modules()} <= {
        "transformers",
        "torch",
        "baton_serve",
    }


@pytest.mark.skipif(not is_available(torch.float32), reason="torch without oneDNN")
def test_a_layer_that_loses_its_part_is_noticed(
    folder_of: Folders, adapters_of: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = {"a": adapters_of("llama")["second"]}
    monkeypatch.setattr(linear.low_rank, "joined", lambda layers: None)
    with pytest.raises(UnsupportedModelError, match="adapter 'a' is not supported: as served it gives other logits"):
        load(folder_of("llama"), adapters=adapters)


@pytest.mark.skipif(not is_available(torch.float32), reason="torch without oneDNN")
def test_a_lost_part_is_noticed_that_changes_next_to_nothing(
    folder_of: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = tiny_adapters.build(tmp_path, folder_of("llama"), scale=1e-7)
    load(folder_of("llama"), adapters={"a": adapter})
    monkeypatch.setattr(linear.low_rank, "joined", lambda layers: None)
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.0\.\S+ is computed without it"):
        load(folder_of("llama"), adapters={"a": adapter})


def test_a_part_for_the_wrong_rows_is_noticed(
    folder_of: Folders, adapters_of: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = LowRank.add

    def to_all_rows(part: LowRank, inputs: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        runs = part.selection.runs
        part.selection.runs = tuple(run._replace(tokens=slice(None)) for run in runs)
        try:
            return add(part, inputs, product)
        finally:
            part.selection.runs = runs

    monkeypatch.setattr(LowRank, "add", to_all_rows)
    with pytest.raises(UnsupportedModelError, match="as served it gives other logits than peft does"):
        load(folder_of("llama"), adapters=adapters_of("llama"))


@pytest.mark.parametrize(
    ("config", "num_layers"),
    [
        ({"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1]}, 2),
        ({"exclude_modules": ["o_proj"], "rank_pattern": {"k_proj": 7}, "alpha_pattern": {"down_proj": 3}}, 12),
        ({"target_modules": r".*layers\.0\.mlp\..*_proj", "use_rslora": True, "lora_dropout": 0.5}, 3),
    ],
)
def test_layers_of_their_own_choice_rank_and_scaling(
    config: dict[str, Any], num_layers: int, folder_of: Folders, tmp_path: Path
) -> None:
    adapter = tiny_adapters.build(tmp_path, folder_of("llama"), **config)
    model = load(folder_of("llama"), adapters={"a": adapter})
    assert len(model.adapters.parts) == num_layers
    (job,) = jobs = [Job(prompt(20, 1), 8, adapter=model.adapters.names["a"])]
    assert Driver(model).run(jobs) == [Reference(folder_of("llama"), adapter).generate(job.prompt, 8)]


def test_half_precision(folder_of: Folders, adapters_of: Adapters) -> None:
    model = load(folder_of("llama"), dtype="bfloat16", adapters=adapters_of("llama"))
    (job,) = jobs = [Job(prompt(20, 1), 4, adapter=model.adapters.names["first"])]
    Driver(model).run(jobs)
    assert len(job.outputs) == 4
