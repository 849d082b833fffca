"""LoRA adapters with random weights for the models of ``tiny_models`` and the demo model, as peft writes them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM


def build(folder: Path, model: Path, *, seed: int = 0, scale: float = 1.0, **config: Any) -> Path:
    """Write an adapter for the model in a folder, and return its own folder. The same arguments give the same bytes.

    ``config``: fields of peft's LoraConfig; by default all linear layers are changed. ``scale``: of the second matrix
    of each layer; the larger it is, the less the tokens are those of the model.
    """
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    wanted = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **config}
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        adapted = get_peft_model(base, LoraConfig(**wanted))
        for name, parameter in sorted(adapted.named_parameters()):
            if ".lora_A." in name:
                parameter.data.normal_(std=parameter.shape[1] ** -0.5)
            elif ".lora_B." in name:
                parameter.data.normal_(std=scale * parameter.shape[1] ** -0.5)
        adapted.save_pretrained(folder)
    return folder
