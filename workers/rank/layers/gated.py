"""Gated layers (SwiGLU) as two products, with the activation and the gate in one pass between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from baton_serve.workers.rank.layers.linear import PackedLinear
    from baton_serve.workers.rank.layers.row_programs import RowPrograms

#: The layers of such a module, by their names.
NAMES = ("gate_proj", "up_proj", "down_proj")


class GatedMLP(torch.nn.Module):
    """``down(silu(gate(x)) * up(x))`` for inputs ``[..., hidden]``; ``both`` is the product of gate and up."""

    def __init__(self, both: PackedLinear, down: PackedLinear, programs: RowPrograms) -> None:
        super().__init__()
        self.both, self.down = both, down
        self._programs = programs

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs, ``[..., hidden]``."""
        # Calling a module takes longer than a small operation.
        product = self.both.forward(inputs).contiguous()
        *sizes, size = product.shape
        gated = product.new_empty((*sizes, size // 2))
        self._programs.gate(product, gated)
        return self.down.forward(gated)
