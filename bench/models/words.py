"""A random model of 4.5 million parameters, whose every token is a word, and prompts for it.

A token of its cache has 4 KiB in float32, as many as one of the demo model.
"""

from __future__ import annotations

import random
from pathlib import Path

from bench.models.llama import LlamaSize, make_llama

NAME = "random"
VOCAB_SIZE = 8192
CONTEXT_TOKENS = 8192
#: Their places are the ids that every Llama here has for them.
BOS, EOS, PAD = SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
SIZE = LlamaSize(
    NAME,
    hidden=256,
    intermediate=512,
    layers=4,
    heads=8,
    kv_heads=4,
    vocab_size=VOCAB_SIZE,
    max_positions=CONTEXT_TOKENS,
)


def make_model(folder: Path) -> None:
    """Write the model and its tokenizer, always the same."""
    import torch

    model = make_llama(SIZE, seed=0, initializer_range=0.1)
    with torch.no_grad():
        # The logits of special tokens are 0 then, so that none is the most likely one, and every token has a text.
        model.get_input_embeddings().weight[: len(SPECIAL)] = 0.0
    model.save_pretrained(folder)
    _make_tokenizer(folder)


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # A byte-level vocabulary spells a space at the beginning of a word as this letter.
    words = [*SPECIAL, *(f"\u0120w{number}" for number in range(VOCAB_SIZE - len(SPECIAL)))]
    whole = Tokenizer(models.BPE(vocab={word: token for token, word in enumerate(words)}, merges=[]))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=whole, bos_token=BOS, eos_token=EOS, pad_token=PAD)
    fast.save_pretrained(folder)


def make_prompts(seed: str, num_prompts: int, num_tokens: int) -> list[list[int]]:
    """Prompts as token ids, no two of which begin alike. The same for the same arguments."""
    rng = random.Random(f"{seed} {num_tokens}")
    return [rng.choices(range(len(SPECIAL), VOCAB_SIZE), k=num_tokens) for _ in range(num_prompts)]
