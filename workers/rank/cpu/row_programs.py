"""The programs for tokens by themselves, called with tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.workers.rank.cpu.support import program, seen, takes

if TYPE_CHECKING:
    import torch


class CpuRows:
    """``RowPrograms`` on a CPU."""

    def takes(self, dtype: torch.dtype) -> bool:
        """See ``RowPrograms``."""
        return takes(dtype)

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, eps: float) -> None:
        """See ``RowPrograms``."""
        size = weight.numel()
        program("rms_norm", weight.dtype)(seen(inputs.view(-1, size)), seen(weight), seen(outputs.view(-1, size)), eps)

    def rotate(
        self, product: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, heads: int, head_dim: int
    ) -> None:
        """See ``RowPrograms``."""
        angles = (seen(each.view(-1, head_dim)) for each in (cosines, sines))
        program("rotate", product.dtype)(seen(product.view(-1, product.shape[-1])), *angles, heads)

    def gate(self, product: torch.Tensor, outputs: torch.Tensor) -> None:
        """See ``RowPrograms``."""
        size = outputs.shape[-1]
        program("gate", product.dtype)(seen(product.view(-1, 2 * size)), seen(outputs.view(-1, size)))
