"""Linear layers whose weights are laid out as their device reads them, and layers that share one product.

On CPUs the layout is oneDNN's. Torch hands a plain weight to MKL (float32), or has oneDNN arrange it again for
each product (bfloat16): products of 8 tokens take half to a third of the time when the weight is laid out once. The
operators are those that torch's own compiler uses for weights that do not change. They are no public interface, so
``is_available`` asks for them.

A product is then independent of how many other tokens are computed with it, which those of MKL are not.

On a GPU a weight stays as it is; what is gained is that one product is started instead of several.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch

from baton_serve.workers.rank.adapters import low_rank
from baton_serve.workers.rank.adapters.low_rank import LowRank

_CPU = torch.device("cpu")


def is_available(dtype: torch.dtype, device: torch.device = _CPU) -> bool:
    """Whether this device and this torch compute packed products of the type."""
    if device.type != "cpu":
        return dtype.is_floating_point
    operators = torch.ops.mkldnn
    if not torch._C._has_mkldnn or not hasattr(operators, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedLinear(torch.nn.Module):
    """A linear layer for inputs ``[..., in_features]``; ``weight`` is ``[out_features, in_features]`` and opaque.

    ``part`` is what adapters add to its product.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, part: LowRank | None = None) -> None:
        super().__init__()
        #: See ``low_rank.part_of``.
        self.low_rank = part
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        self._is_laid_out = weight.device.type == "cpu"
        if self._is_laid_out:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor
        if self._is_laid_out:
            product = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")
        else:
            product = torch.nn.functional.linear(inputs, self.weight, self.bias)
        return product if self.low_rank is None else self.low_rank.add(inputs, product)


def joined(layers: Sequence[torch.nn.Linear]) -> PackedLinear:
    """One layer whose outputs are those of all, side by side, with what adapters add to them.

    All have as many inputs, and all or none have a bias.
    """
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    # A copy of a single weight would be held beside it until the layer is gone.
    weight = layers[0].weight.detach() if len(layers) == 1 else torch.cat([layer.weight.detach() for layer in layers])
    return PackedLinear(weight, torch.cat(biases) if biases else None, low_rank.joined(layers))


class SharedProduct:
    """One product for several layers that are called with the same input one after the other."""

    def __init__(self, layers: Sequence[torch.nn.Linear]) -> None:
        """All layers have as many inputs, and all or none have a bias."""
        self._linear = joined(layers)
        self._sizes = [layer.out_features for layer in layers]
        self._inputs: ref[torch.Tensor] | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, index: int, inputs: torch.Tensor) -> torch.Tensor:
        """The product of the layer with this index.

        The last layer's call forgets the products. If it does not come, they go with the inputs, which the model drops.
        """
        if self._inputs is None or self._inputs() is not inputs:
            self._parts = self._linear(inputs).split(self._sizes, dim=-1)
            self._inputs = ref(inputs, self._forget)
        part = self._parts[index]
        if index == len(self._sizes) - 1:
            self._forget()
        return part

    def _forget(self, _: object = None) -> None:
        self._inputs, self._parts = None, ()


class LinearPart(torch.nn.Module):
    """One of the layers of a shared product."""

    def __init__(self, shared: SharedProduct, index: int) -> None:
        super().__init__()
        self._shared = shared
        self._index = index

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._shared.part(self._index, inputs)
