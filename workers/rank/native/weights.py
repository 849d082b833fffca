"""A layer's weights, laid out for the program of ``products``, and their products with tokens."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from baton_serve.workers.rank.huge_pages import zeros_in_huge_pages
from baton_serve.workers.rank.native.numbers import per_word
from baton_serve.workers.rank.native.products import product
from baton_serve.workers.rank.native.support import has_tiles
from baton_serve.workers.rank.native.tiles import WIDTH
from baton_serve.workers.transfer.mapped.shared_file import HUGE_PAGE_BYTES

if TYPE_CHECKING:
    from baton_serve.workers.rank.native.program import Program


def takes(dtype: torch.dtype, in_features: int) -> bool:
    """Whether weights of this type, for so many inputs, are for ``NativeWeight`` on this processor."""
    return has_tiles(dtype) and in_features % per_word(dtype) == 0


class NativeWeight:
    """The product for inputs ``[..., in_features]``, by the threads that torch has."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight`` is ``[out_features, in_features]``, and is not kept."""
        self.out_features, self.in_features = weight.shape
        self.weights = laid_out(weight)
        self._bias = weight.new_zeros(len(self.weights) * WIDTH)
        if bias is not None:
            self._bias[: self.out_features] = bias
        self._program: Program = product(weight.dtype)

    def times(self, inputs: torch.Tensor) -> torch.Tensor:
        """The products ``[..., out_features]``. Raises ValueError for inputs of another type or size."""
        if inputs.dtype != self.weights.dtype or inputs.shape[-1] != self.in_features:
            given = f"{inputs.dtype} {tuple(inputs.shape)}"
            raise ValueError(f"inputs {given} for weights {self.weights.dtype} of {self.in_features} inputs")
        inputs = inputs.contiguous()
        outputs = inputs.new_empty((*inputs.shape[:-1], self.out_features))
        self._program(
            inputs.data_ptr(),
            self.weights.data_ptr(),
            self._bias.data_ptr(),
            outputs.data_ptr(),
            inputs.numel() // self.in_features,
            self.in_features,
            self.out_features,
            torch.get_num_threads(),
        )
        return outputs


def laid_out(weight: torch.Tensor, width: int = WIDTH) -> torch.Tensor:
    """A weight ``[output, input]`` as ``product`` reads it from one end to the other: ``[block, input / n, width, n]``.

    ``n`` is 2 for bfloat16 and else 1. The last block is filled up with zeros.
    """
    outputs, inputs = weight.shape
    together = per_word(weight.dtype)
    sizes = -(-outputs // width), inputs // together, width, together
    num_bytes = prod(sizes) * weight.dtype.itemsize
    is_large = num_bytes >= HUGE_PAGE_BYTES
    result = zeros_in_huge_pages(num_bytes).view(weight.dtype).view(sizes) if is_large else weight.new_zeros(sizes)
    full = outputs // width
    pairs = weight.reshape(outputs, inputs // together, together)
    result[:full] = pairs[: full * width].view(full, width, inputs // together, together).transpose(1, 2)
    if full < len(result):
        result[full, :, : outputs - full * width] = pairs[full * width :].transpose(0, 1)
    return result
