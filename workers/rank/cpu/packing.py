"""Replaces layers of a loaded model by faster ones that compute the same."""

from __future__ import annotations

import torch

from workers.rank.cpu.linear import LinearPart, PackedLinear, SharedProduct, is_available
from workers.rank.cpu.norm import replace_norms

#: Names under which models have layers that are called with the same input, in the order of the calls. A layer that is
#: called with another input computes the products of all of them and keeps its own, so a wrong name costs time, not
#: results. A model that changes the input in place between the calls fails the check at load.
SHARING = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def pack(model: torch.nn.Module) -> None:
    """Lay out the weights of all linear layers for this processor, and replace norms.

    The model keeps no other copy of these weights, so its state cannot be saved afterwards. Types for which there is no
    packed product stay as they are. The model must not be split over ranks.
    """
    replace_norms(model)
    for module in list(model.modules()):
        for names in SHARING:
            _share(module, names)
        for name, layer in _linear_layers(module).items():
            setattr(module, name, PackedLinear(layer.weight, layer.bias))


def _share(module: torch.nn.Module, names: tuple[str, ...]) -> None:
    found = _linear_layers(module)
    layers = [found[name] for name in names if name in found]
    alike = {(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in layers}
    if len(layers) == len(names) and len(alike) == 1:
        shared = SharedProduct(layers)
        for index, name in enumerate(names):
            setattr(module, name, LinearPart(shared, index))


def _linear_layers(module: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    """The plain linear layers right below ``module``: a class of its own may do something else."""
    return {
        name: layer
        for name, layer in module.named_children()
        if type(layer) is torch.nn.Linear and is_available(layer.weight.dtype)
    }
