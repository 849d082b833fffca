"""Refuses adapters by their config: those that change a model by more than low-rank parts of its linear layers."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from peft import LoraConfig

from baton_serve.workers.rank_protocol.errors import ModelLoadError, UnsupportedModelError, one_line

CONFIG_FILE = "adapter_config.json"
#: Fields that make an adapter something else if they are set, with what that is.
_SWITCHES = {
    "use_dora": "DoRA",
    "lora_bias": "biases of its own",
    "modules_to_save": "whole modules of its own",
    "trainable_token_indices": "embeddings of its own",
    "target_parameters": "changed parameters outside of layers",
    "layer_replication": "repeated layers",
    "alora_invocation_tokens": "an adapter that begins in the middle of a prompt (aLoRA)",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal factors",
    "arrow_config": "a routing between adapters",
    "kasa_config": "KaSA",
    "monteclora_config": "sampled factors",
    "velora_config": "VeLoRA",
    "megatron_config": "layers of Megatron",
}
#: Values of ``init_lora_weights`` that leave the model's own weights as they are. With the others an adapter is for
#: weights that have been changed, unless it was converted when it was saved; then its config says True.
_HARMLESS_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
_KNOWN = {field.name for field in fields(LoraConfig)} | {"runtime_config"}


def read_config(name: str, folder: Path) -> LoraConfig:
    """The config of the adapter in a folder. Raises ModelLoadError; UnsupportedModelError, which names the reasons."""
    told = _read(name, folder)
    if told.get("peft_type") != "LORA":
        refuse(name, f"its peft_type is {told.get('peft_type')!r}, not 'LORA'")
    unknown = sorted(set(told) - _KNOWN)
    if unknown:
        refuse(name, f"the installed version of peft does not know {', '.join(unknown)} in its {CONFIG_FILE}")
    reasons = [f"{what} ({field})" for field, what in _SWITCHES.items() if told.get(field)]
    if told.get("bias", "none") != "none":
        reasons.append(f"trained biases (bias is {told['bias']!r})")
    if told.get("init_lora_weights") not in _HARMLESS_INITS:
        reasons.append(f"changed weights of the model (init_lora_weights is {told['init_lora_weights']!r})")
    if told.get("task_type") not in (None, "CAUSAL_LM"):
        reasons.append(f"a task other than text (task_type is {told['task_type']!r})")
    if reasons:
        refuse(name, f"it has {'; '.join(reasons)}")
    try:
        return LoraConfig(**{field: value for field, value in told.items() if field != "runtime_config"})
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"cannot load the config of adapter '{name}': {one_line(error)}") from error


def refuse(name: str, reason: str) -> NoReturn:
    raise UnsupportedModelError(f"adapter '{name}' is not supported: {reason}")


def _read(name: str, folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        why = f"no {CONFIG_FILE}" if folder.is_dir() else "no such folder"
        raise ModelLoadError(f"no adapter '{name}' in {folder}: {why}")
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot load the config of adapter '{name}': {one_line(error)}") from error
    if not isinstance(told, dict):
        raise ModelLoadError(f"cannot load the config of adapter '{name}': {CONFIG_FILE} is not an object")
    return told
