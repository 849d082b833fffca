"""A random model of 4.5 million parameters, whose every token is a word, and prompts for it.

A token of its cache has 4 KiB in float32, as many as one of the demo model.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "random"
VOCAB_SIZE = 8192
CONTEXT_TOKENS = 8192
BOS, EOS, PAD = SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
#: Layers, K and V, heads, numbers of a head, bytes of a number.
BYTES_PER_TOKEN = 4 * 2 * 4 * 32 * 4


def make_model(folder: Path) -> None:
    """Write the model and its tokenizer, always the same."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=SPECIAL.index(BOS),
        eos_token_id=SPECIAL.index(EOS),
        pad_token_id=SPECIAL.index(PAD),
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        # The logits of special tokens are 0 then, so that none is the most likely one, and every token has a text.
        model.get_input_embeddings().weight[: len(SPECIAL)] = 0.0
    model.to(torch.float32).save_pretrained(folder)
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
