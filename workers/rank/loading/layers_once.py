"""Several forward passes with the same inputs of which only the first computes the layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel


@contextmanager
def layers_once(module: PreTrainedModel, *, selects_logits: bool) -> Iterator[None]:
    """Within, the first pass computes the layers, and later ones use its outputs, to compute logits of other tokens.

    ``selects_logits``: whether the model computes the logits of some tokens only. One that computes those of all tokens
    anyway does it once.

    So the model's own code computes all logits, whatever it does after its layers. If it does not call its layers by
    the name that transformers knows, every pass computes them again, which gives the same.
    """
    layers = module.base_model if selects_logits else module
    if layers is module and selects_logits:
        yield
        return
    attributes, compute = vars(layers), layers.forward
    outputs: list[Any] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not outputs:
            outputs.append(compute(*args, **kwargs))
        return outputs[0]

    before = {name: attributes[name] for name in ("forward",) if name in attributes}
    attributes["forward"] = forward  # the module's hooks and its other attributes stay as they are
    try:
        yield
    finally:
        del attributes["forward"]
        attributes.update(before)
