"""The fingerprint of weights sees every byte, and nothing but what is computed with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from baton_serve.baton.demo import MODEL_DIR
from baton_serve.workers.rank.loading.fingerprint import fingerprint
from tests.kits import tiny_models
from tests.kits.rank.driver import load
from tests.kits.rank.models import Folders


def test_seven_rows_of_an_embedding_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    original = load(folder).weights_fingerprint
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    rows = slice(101, 108)
    embedding[rows] = embedding[rows].flip(0)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(folder).weights_fingerprint != original


@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 20])
def test_no_bit_of_any_tensor_is_without_effect(folder_of: Folders, chunk_bytes: int) -> None:
    module = AutoModelForCausalLM.from_pretrained(folder_of("qwen2"))
    original = fingerprint(module, chunk_bytes)
    seen = {original}
    tensors = module.state_dict()
    for tensor in tensors.values():
        flat = tensor.view(-1).view(torch.uint8)
        for place in (0, len(flat) // 3 + 1, len(flat) - 1):
            flat[place] ^= 1
            seen.add(fingerprint(module, chunk_bytes))
            flat[place] ^= 1
    assert len(seen) == 3 * len(tensors) + 1
    assert fingerprint(module, chunk_bytes) == original


def test_where_a_number_stands_matters(folder_of: Folders) -> None:
    """Also for two tensors of one shape, and for two chunks of one tensor."""
    module = AutoModelForCausalLM.from_pretrained(folder_of("llama"))
    original = fingerprint(module, 256)
    tensors = module.state_dict()
    one, other = (tensors[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    for left, right in ((one, other), (one[0], one[1])):
        _swap(left, right)
        assert fingerprint(module, 256) != original
        _swap(left, right)
    assert fingerprint(module, 256) == original


def _swap(left: torch.Tensor, right: torch.Tensor) -> None:
    held = left.clone()
    left.copy_(right)
    right.copy_(held)


def test_how_the_weights_are_filed_does_not_matter(folder_of: Folders, tmp_path: Path) -> None:
    folder = folder_of("llama")
    original = load(folder).weights_fingerprint
    module = AutoModelForCausalLM.from_pretrained(folder)
    shards, pickles, other = (tmp_path / name for name in ("shards", "pickles", "other"))
    module.save_pretrained(shards, max_shard_size="100KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    tensors = module.state_dict()
    for where in (pickles, other):
        module.config.save_pretrained(where)
        torch.save(tensors, where / "pytorch_model.bin")
        tensors["model.layers.1.mlp.up_proj.weight"][77, 7] += 1
    assert load(shards).weights_fingerprint == original
    assert load(pickles).weights_fingerprint == original
    assert load(other).weights_fingerprint != original


def test_tied_weights_are_seen(tmp_path: Path) -> None:
    tied = tiny_models.build(tmp_path / "tied", "qwen2", tie_word_embeddings=True)
    module = AutoModelForCausalLM.from_pretrained(tied)
    original = fingerprint(module)
    module.get_input_embeddings().weight.data[5, 5] += 1
    assert fingerprint(module) != original


def test_the_types_of_numbers_that_are_not_equally_precise_differ(folder_of: Folders) -> None:
    half = load(folder_of("llama"), dtype="bfloat16")
    assert half.weights_fingerprint != load(folder_of("llama")).weights_fingerprint


def test_what_it_costs_is_told_beside_the_load_time(folder_of: Folders) -> None:
    told: list[str] = []
    model = load(folder_of("llama"), progress=told.append)
    loaded = told[-1]
    assert re.fullmatch(
        r"loaded \d+ MB of weights on cpu as float32 in \d+\.\d\d s, fingerprint of every byte in \d+\.\d\d s", loaded
    )
    assert model.load_s > 0
    assert model.fingerprint_s > 0
