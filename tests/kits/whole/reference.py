"""What the tokens have to be: those of ``transformers`` on the same weights in float32, and of peft with an adapter."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_serve.baton.demo import MODEL_DIR


@functools.cache
def model(folder: Path = MODEL_DIR, adapter: Path | None = None) -> Any:
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return own if adapter is None else PeftModel.from_pretrained(own, adapter).eval()


@functools.cache
def tokenizer(folder: Path = MODEL_DIR) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@functools.cache
def greedy(
    prompt: tuple[int, ...], num_tokens: int, folder: Path = MODEL_DIR, adapter: Path | None = None
) -> list[int]:
    """``num_tokens`` greedy tokens after ``prompt``, the end-of-sequence token not stopping it."""
    with torch.inference_mode():
        output = model(folder, adapter).generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """Random ordinary tokens: text nobody trained on, so that a wrong block shows at once."""
    special = set(tokenizer().all_special_ids)
    ordinary = [i for i in range(len(tokenizer())) if i not in special]
    return random.Random(seed).choices(ordinary, k=num_tokens)
