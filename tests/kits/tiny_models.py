"""Small random Hugging Face folders for tests: a real config, real safetensors, a real tokenizer; nothing trained.

``build(tmp_path / "llama", "llama")`` writes one in well under a second, always with the same bytes. Weights are
drawn wider than models are usually started with, so that greedy output wanders instead of repeating one token and a
wrong key, position or mask shows in the text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 384
BOS, EOS = "<|begin|>", "<|end|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "[{{ message['role'] }}] {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)

#: What every architecture shares unless its own entry says otherwise.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "initializer_range": 0.25,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "torch_dtype": "float32",
}

#: By architecture: what makes it worth a test of its own.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    # Served. Grouped queries; norms on q and k; biases on q, k and v; a window shorter than most prompts.
    "llama": {},
    "qwen3": {},
    "qwen2": {},
    "mistral": {"sliding_window": 32},
    # Windowed and full layers in one model.
    "qwen3_mixed": {
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    # Experts: the attention is an ordinary one.
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    # Learned positions, fused projections, no grouped queries.
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 4096, "n_inner": 128},
    # Attention that does more than softmax(QK)V: a soft cap on the scores, learned sinks, biases by distance.
    "gemma2": {"query_pre_attn_scalar": 16, "sliding_window": 32},
    # Every other layer looks at a few tokens only, and the two kinds have blocks of their own.
    "gemma3_text": {"query_pre_attn_scalar": 16, "sliding_window": 32, "sliding_window_pattern": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    # No attention at all.
    "mamba": {"state_size": 8},
}

_SIZES = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings")
#: Names in ``_COMMON`` that an architecture spells in its own way and would otherwise see twice.
_OWN_SPELLING: dict[str, tuple[str, ...]] = {
    "gpt2": ("hidden_size", "num_hidden_layers", *_SIZES),
    "bloom": ("num_hidden_layers", *_SIZES),
    "mamba": _SIZES,
}


def build(
    folder: Path, architecture: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> Path:
    """Write a model of ``architecture`` (a key of ``ARCHITECTURES``) into ``folder`` and return the folder.

    ``overrides`` are fields of the architecture's config. The same arguments give the same bytes. Torch's global
    random state is left as it was.
    """
    spec = dict(ARCHITECTURES[architecture])
    model_type = spec.pop("model_type", architecture)
    common = {name: value for name, value in _COMMON.items() if name not in _OWN_SPELLING.get(architecture, ())}
    config = AutoConfig.for_model(model_type, **{**common, **spec, **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        _roughen(model)
    model.to(dtype).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def _roughen(model: torch.nn.Module) -> None:
    """Give biases and norms values of their own: zeros and ones would hide that somebody forgot them."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            spread = 0.1 if "norm" in name else 0.3
            parameter.data.add_(torch.randn_like(parameter) * spread)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of ``VOCAB_SIZE`` entries: two special tokens, all bytes, and merges of the text below.

    Characters beyond ASCII stay several tokens, so incremental decoding has something to hold back.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([_TEXT], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, pad_token=EOS, unk_token=EOS)
    fast.chat_template = CHAT_TEMPLATE
    return fast


_TEXT = """
A relay team wins by the hand-over. The runner who comes in holds the baton until the other one has it, and not a
step longer; the runner who goes out starts when there is room on the track, and not a step sooner. If the baton falls,
the team picks it up where it lies and runs on. Nobody goes back to the start, and nobody runs with a stranger's baton.
"""
