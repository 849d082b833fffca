"""Llamas with random weights, of three sizes, as folders that transformers and vLLM load."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.demo import MODEL_DIR
from bench.performance.machine import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "build" / "bench" / "models"
VOCAB_SIZE = 1536
#: Room for contexts of 32,768 tokens and what is decoded after them.
MAX_POSITIONS = 33_792
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_SEED = 1


@dataclass(frozen=True)
class ModelSize:
    """Sizes of one Llama. The tokens of the demo's tokenizer are its vocabulary."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def num_parameters(self) -> int:
        """Weights, without those of norms. The output layer is the embedding."""
        head_dim = self.hidden // self.heads
        attention = self.hidden * head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + VOCAB_SIZE * self.hidden


SIZES = {
    size.name: size
    for size in (
        ModelSize("5M", hidden=256, intermediate=704, layers=6, heads=8, kv_heads=4),
        ModelSize("50M", hidden=640, intermediate=1728, layers=11, heads=10, kv_heads=5),
        ModelSize("500M", hidden=1536, intermediate=4096, layers=20, heads=24, kv_heads=8),
    )
}


def model_folder(size: ModelSize, parent: Path = FOLDER) -> Path:
    """The folder of the model, which is made if it is not there: float32 weights and the demo's tokenizer."""
    folder = parent / f"llama-{size.name}"
    if folder.exists():
        return folder
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _save(size, unfinished)
    for name in TOKENIZER_FILES:
        shutil.copy(MODEL_DIR / name, unfinished)
    unfinished.rename(folder)
    return folder


def _save(size: ModelSize, folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(_SEED)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
