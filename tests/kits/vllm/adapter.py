"""A LoRA adapter of the demo model, with random weights that change its answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from baton_serve.baton.demo import MODEL_DIR

RANK = 8
#: Standard deviation of the weights: large enough for other tokens.
SCALE = 0.3


def write_adapter(folder: Path) -> Path:
    """Write an adapter of the attention's queries and values into a new folder, as PEFT does."""
    config = json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    widths = {"q_proj": config["num_attention_heads"] * head_dim, "v_proj": config["num_key_value_heads"] * head_dim}
    random = np.random.default_rng(7)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = random.normal(0, SCALE, (RANK, hidden)).astype(np.float32)
            weights[f"{place}.lora_B.weight"] = random.normal(0, SCALE, (width, RANK)).astype(np.float32)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none"}
    adapter |= {"target_modules": [*widths], "base_model_name_or_path": "baton-demo"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    return folder
