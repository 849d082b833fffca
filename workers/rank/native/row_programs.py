"""The programs of ``rows``, called with tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.rank.native.rows import gate, rms_norm, rotate
from workers.rank.native.support import is_available

if TYPE_CHECKING:
    import torch


class NativeRows:
    """``RowPrograms`` on a CPU."""

    def takes(self, dtype: torch.dtype) -> bool:
        """See ``RowPrograms``."""
        return is_available(dtype)

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, eps: float) -> None:
        """See ``RowPrograms``."""
        size = weight.numel()
        rows = inputs.numel() // size
        rms_norm(weight.dtype)(inputs.data_ptr(), weight.data_ptr(), outputs.data_ptr(), rows, size, size, eps)

    def rotate(
        self, product: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, heads: int, head_dim: int
    ) -> None:
        """See ``RowPrograms``."""
        size = product.shape[-1]
        tokens = product.numel() // size
        rotate(product.dtype)(product.data_ptr(), cosines.data_ptr(), sines.data_ptr(), tokens, heads, head_dim, size)

    def gate(self, product: torch.Tensor, outputs: torch.Tensor) -> None:
        """See ``RowPrograms``."""
        size = outputs.shape[-1]
        gate(product.dtype)(product.data_ptr(), outputs.data_ptr(), outputs.numel() // size, size)
