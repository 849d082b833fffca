"""Llamas with random weights have the sizes that they say, and are the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.models import words
from bench.models.llama import BOS, EOS, PAD, LlamaSize, make_llama
from bench.models.sized import SIZES, TOKENIZER_FILES, model_folder

TINY = LlamaSize("tiny", hidden=32, intermediate=64, layers=1, heads=2, kv_heads=1, vocab_size=96, max_positions=64)


def test_models_have_the_sizes_that_their_names_say() -> None:
    for name, size in SIZES.items():
        assert size.num_parameters == pytest.approx(float(name[:-1]) * 1e6, rel=0.05)


def test_a_model_is_made_once(tmp_path: Path) -> None:
    size = TINY
    folder = model_folder(size, tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", *TOKENIZER_FILES} <= set(written)
    assert {path.name: path.stat().st_mtime_ns for path in model_folder(size, tmp_path).iterdir()} == written


def test_a_seed_says_what_the_weights_are_and_leaves_those_of_others_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    embeddings = [make_llama(TINY, seed).get_input_embeddings().weight for seed in (1, 1, 2)]
    assert torch.equal(embeddings[0], embeddings[1])
    assert not torch.equal(embeddings[0], embeddings[2])
    assert torch.equal(torch.rand(1), expected)


def test_a_model_has_the_parameters_that_are_counted() -> None:
    model = make_llama(TINY, 0)
    norms = TINY.hidden * (2 * TINY.layers + 1)
    assert sum(weights.numel() for weights in model.parameters()) == TINY.num_parameters + norms


def test_special_words_have_the_ids_of_all_llamas() -> None:
    assert [words.SPECIAL.index(word) for word in (words.BOS, words.EOS, words.PAD)] == [BOS, EOS, PAD]
