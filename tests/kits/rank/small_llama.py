"""A Llama with random weights, small enough to be made in every test."""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM

from baton_serve.workers.rank.cache.attention import NAME


def llama(activation: str = "silu", *, bias: bool = False, initializer_range: float = 0.02) -> LlamaForCausalLM:
    """Its attention is the paged one, which has to be registered."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        hidden_act=activation,
        attention_bias=bias,
        initializer_range=initializer_range,
        attn_implementation=NAME,
    )
    return LlamaForCausalLM(config).eval()
