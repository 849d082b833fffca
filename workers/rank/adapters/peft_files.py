"""Reads the files of an adapter by peft, which knows what is where in the model.

Peft puts its own layers into the model, loads the tensors into them and takes them out again. Meanwhile the model is
what its trainers had, so its logits are kept to compare with: what serves the adapter is our own code (``low_rank``).
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraModel, set_peft_model_state_dict
from peft.tuners.lora import Linear as PeftLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from baton_serve.workers.rank import distributed
from baton_serve.workers.rank.adapters.config_checks import read_config, refuse
from baton_serve.workers.rank.adapters.low_rank import Factors
from baton_serve.workers.rank_protocol.errors import ModelLoadError, RankError, one_line

WEIGHTS_FILE = "adapter_model.safetensors"
_FACTOR = re.compile(r"\.lora_[AB]\.(\w+\.)?weight")
#: Peft's name for the adapter; only one is in the model at a time.
_INJECTED = "adapter"


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter as it was read. ``factors``: by the names of layers, for this rank's part of them.

    ``fingerprint`` is a hash over the model's own, and over every byte of the factors.
    ``own``: what the caller asked for while the model was peft's.
    """

    factors: dict[str, Factors]
    fingerprint: str
    own: list[torch.Tensor]


def read_adapter(
    model: PreTrainedModel, name: str, folder: Path, base: str, ask: Callable[[], list[torch.Tensor]]
) -> PeftAdapter:
    """Read the adapter in a folder. The model is as before afterwards. All ranks call this at the same time.

    ``base``: fingerprint of the model. ``ask`` is called while the model has the adapter as peft computes it.
    Raises ModelLoadError; UnsupportedModelError, which names the reasons.
    """
    with warnings.catch_warnings():
        # What they are about is either checked here, or compared when the adapter is proven.
        warnings.simplefilter("ignore")
        try:
            with _injected(model, name, folder) as layers:
                own = ask()
                factors = {layer: _local(name, layer, found) for layer, found in layers.items()}
                return PeftAdapter(factors, _fingerprint(base, layers), own)
        except RankError:
            raise
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            if distributed.is_lost_sibling(error):
                raise
            raise ModelLoadError(f"cannot load the adapter '{name}' from {folder}: {one_line(error)}") from error


@contextmanager
def _injected(model: PreTrainedModel, name: str, folder: Path) -> Iterator[dict[str, PeftLinear]]:
    """Peft's layers by their names, as long as they are in the model."""
    config = read_config(name, folder)
    tensors = _tensors(name, folder)
    output = model.get_output_embeddings()
    tuner = LoraModel(model, config, _INJECTED, low_cpu_mem_usage=True)
    found = {layer: module for layer, module in model.named_modules() if isinstance(module, BaseTunerLayer)}
    layers = {layer: _plain(name, layer, module, output) for layer, module in found.items()}
    result: Any = set_peft_model_state_dict(model, tensors, _INJECTED, low_cpu_mem_usage=True)
    _check_complete(name, layers, result.unexpected_keys)
    model.eval()
    try:
        yield layers
    finally:
        tuner.unload()


def _tensors(name: str, folder: Path) -> dict[str, torch.Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise ModelLoadError(f"no adapter '{name}' in {folder}: no {WEIGHTS_FILE}")
    tensors: dict[str, torch.Tensor] = load_file(path)
    # Peft would load any other tensor into the model's own weights.
    others = [key for key in sorted(tensors) if _FACTOR.search(key) is None]
    if others:
        refuse(name, f"{WEIGHTS_FILE} has {len(others)} tensors that are no low-rank factors, first {others[0]}")
    return tensors


def _plain(name: str, layer: str, module: BaseTunerLayer, output: torch.nn.Module | None) -> PeftLinear:
    """A layer of peft's that does nothing but add a product of two matrices. ``output``: the model's output layer."""
    if type(module) is not PeftLinear or module.lora_variant:
        refuse(name, f"it changes {layer}, which is no plain linear layer")
    if module.get_base_layer() is output:
        refuse(name, f"it changes {layer}, the output layer")
    return module


def _check_complete(name: str, layers: Mapping[str, PeftLinear], unexpected: list[str]) -> None:
    missing = [layer for layer, module in layers.items() if any(matrix.is_meta for matrix in _matrices(module))]
    if missing:
        raise ModelLoadError(f"the weights of adapter '{name}' lack {len(missing)} layers, first {missing[0]}")
    if unexpected:
        raise ModelLoadError(
            f"the weights of adapter '{name}' have {len(unexpected)} tensors for layers that its config does not name, "
            f"first {unexpected[0]}"
        )


def _matrices(module: PeftLinear) -> tuple[torch.Tensor, torch.Tensor]:
    """Peft's two matrices of a layer: A ``[rank, in]`` and B ``[out, rank]``."""
    down, up = (each[_INJECTED].weight for each in (module.lora_A, module.lora_B))
    assert isinstance(down, torch.Tensor) and isinstance(up, torch.Tensor), "both are layers of torch"
    return down, up


def _local(name: str, layer: str, module: PeftLinear) -> Factors:
    """This rank's part: peft has split the factors as the layer is."""
    down, up = _matrices(module)
    is_split = isinstance(module.get_base_layer().weight, DTensor)
    if is_split and not (isinstance(down, DTensor) or isinstance(up, DTensor)):
        refuse(name, f"it changes {layer}, which is split over the ranks in a way that peft does not split adapters")
    parts = distributed.local_part(down), distributed.local_part(up)
    return Factors(*_scaled(*parts, module), is_partial=isinstance(down, DTensor))


def _scaled(down: torch.Tensor, up: torch.Tensor, module: PeftLinear) -> tuple[torch.Tensor, torch.Tensor]:
    """Both transposed, as they are multiplied, and the second one with the scaling of the adapter in it."""
    scaled = (up.detach().float() * module.scaling[_INJECTED]).to(up.dtype)
    return down.detach().T.contiguous(), scaled.T.contiguous()


def _fingerprint(base: str, layers: Mapping[str, PeftLinear]) -> str:
    """32 hex digits of a hash over everything that the adapter computes with, whatever the number of ranks."""
    root = hashlib.sha256(base.encode())
    for layer, module in sorted(layers.items()):
        down, up = _matrices(module)
        whole = _scaled(distributed.full_tensor(down), distributed.full_tensor(up), module)
        root.update(json.dumps([layer, *([list(one.shape), str(one.dtype)] for one in whole)]).encode())
        for one in whole:
            root.update(one.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return root.hexdigest()[:32]
