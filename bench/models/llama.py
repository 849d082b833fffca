"""The sizes of a Llama, and one of these sizes with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

BOS, EOS, PAD = range(3)


@dataclass(frozen=True)
class LlamaSize:
    """Sizes of one Llama, whose output layer is its embedding."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    #: Tokens of the longest context.
    max_positions: int

    @property
    def num_parameters(self) -> int:
        """Weights, without those of norms."""
        head_dim = self.hidden // self.heads
        attention = self.hidden * head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.vocab_size * self.hidden


def make_llama(size: LlamaSize, seed: int, initializer_range: float = 0.02) -> LlamaForCausalLM:
    """A model with float32 weights, the same for the same arguments.

    ``initializer_range`` is the standard deviation of its weights; by default that of transformers. The larger it is,
    the farther apart are the logits.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size.vocab_size,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.max_positions,
        tie_word_embeddings=True,
        initializer_range=initializer_range,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
