"""Replaces layers of a loaded model by faster ones that compute the same."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from baton_serve.workers.rank.adapters.low_rank import part_of
from baton_serve.workers.rank.cache.attention import AttentionCall
from baton_serve.workers.rank.layers.linear import LinearPart, PackedLinear, SharedProduct, is_available, joined
from baton_serve.workers.rank.layers.modules import ATTENTION_NAMES, GATED_NAMES, GatedMLP, RotaryAttention, can_take
from baton_serve.workers.rank.layers.norm import replace_norms
from baton_serve.workers.rank.layers.row_programs import RowPrograms
from baton_serve.workers.rank.layers.trials import Inputs, inputs_of, is_close

#: Names under which models have layers that are called with the same input, in the order of the calls. A layer that is
#: called with another input computes the products of all of them and keeps its own, so a wrong name costs time, not
#: results. A model that changes the input in place between the calls fails the check at load.
SHARING = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def pack(model: PreTrainedModel, programs: RowPrograms | None) -> None:
    """Lay out the weights of all linear layers for their device, and replace norms and modules that a trial allows.

    What adapters add to layers stays with their products.
    The model keeps no other copy of these weights, so its state cannot be saved afterwards. Types for which there is no
    packed product stay as they are. The model must not be split over ranks.
    """
    replace_norms(model, programs)
    if programs is not None:
        _replace_modules(model, programs)
    # A list with the layers would keep all of their weights, beside those that are laid out anew.
    for module in [one for one in model.modules() if not isinstance(one, torch.nn.Linear)]:
        for names in SHARING:
            _share(module, names)
        for name, layer in _linear_layers(module).items():
            setattr(module, name, PackedLinear(layer.weight, layer.bias, part_of(layer)))


def _replace_modules(model: PreTrainedModel, programs: RowPrograms) -> None:
    """Replace gated layers and attention modules, each as soon as its replacement has given the same."""
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _can_try(child, GATED_NAMES, programs) or _can_try(child, ATTENTION_NAMES, programs)
    ]
    if not places:
        return
    inputs = inputs_of(model, [child for _, _, child in places])
    while places:  # nothing here keeps the weights of a module that was replaced
        parent, name, child = places.pop()
        given = inputs.pop(child, None)
        faster = None if given is None else _faster(child, given, programs)
        if faster is not None:
            setattr(parent, name, faster)


def _can_try(module: torch.nn.Module, names: tuple[str, ...], programs: RowPrograms) -> bool:
    """Whether these plain linear layers are all modules with weights that it has, and there are programs."""
    children = dict(module.named_children())
    layers = _linear_layers(module)
    others = [child for name, child in children.items() if name not in names and list(child.parameters())]
    dtypes = {layers[name].weight.dtype for name in names if name in layers}
    return (
        set(names) <= set(layers)
        and not others
        and not list(module.parameters(recurse=False))
        and len(dtypes) == 1
        and len({layers[name].bias is None for name in names[:-1]}) == 1
        and programs.takes(next(iter(dtypes)))
    )


def _faster(module: torch.nn.Module, inputs: Inputs, programs: RowPrograms) -> torch.nn.Module | None:
    """A replacement that gives the same for these inputs; None if there is none."""
    own, call = inputs.give(module)
    if call is None:
        return _faster_gated(module, inputs, own, programs)
    return _faster_attention(module, inputs, own, call, programs)


def _faster_gated(module: torch.nn.Module, inputs: Inputs, own: object, programs: RowPrograms) -> GatedMLP | None:
    layers = _linear_layers(module)
    if set(layers) != set(GATED_NAMES) or not isinstance(own, torch.Tensor) or inputs.only is None:
        return None
    gate, up, down = (layers[name] for name in GATED_NAMES)
    faster = GatedMLP(joined([gate, up]), joined([down]), programs)
    return faster if is_close(inputs.give(faster)[0], own) else None


def _faster_attention(
    module: torch.nn.Module, inputs: Inputs, own: object, call: AttentionCall, programs: RowPrograms
) -> RotaryAttention | None:
    layers = _linear_layers(module)
    index = getattr(module, "layer_idx", None)
    is_alike = set(layers) == set(ATTENTION_NAMES) and isinstance(own, tuple) and len(own) == 2
    if not is_alike or not isinstance(index, int) or not can_take(inputs.kwargs, call):
        return None
    queries, keys, values, outputs = (layers[name] for name in ATTENTION_NAMES)
    faster = RotaryAttention(index, joined([queries, keys, values]), joined([outputs]), call, programs)
    ours, our_call = inputs.give(faster)
    assert our_call is not None and isinstance(own, tuple), "it calls the attention, and this was asked before"
    pairs = ((ours[0], own[0]), (our_call.query, call.query), (our_call.key, call.key), (our_call.value, call.value))
    return faster if all(is_close(*pair) for pair in pairs) else None


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
        if type(layer) is torch.nn.Linear and is_available(layer.weight.dtype, layer.weight.device)
    }
