"""The programs of ``rows``, called with tensors."""

from __future__ import annotations

import torch

from baton_serve.workers.rank.native.rows import gate, rms_norm, rotate
from baton_serve.workers.rank.native.support import is_available


class NativeRows:
    """``RowPrograms`` on a CPU."""

    def takes(self, dtype: torch.dtype) -> bool:
        """See ``RowPrograms``."""
        return is_available(dtype)

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, eps: float) -> None:
        """See ``RowPrograms``."""
        size, threads = weight.numel(), torch.get_num_threads()
        rows = inputs.numel() // size
        rms_norm(weight.dtype)(inputs.data_ptr(), weight.data_ptr(), outputs.data_ptr(), rows, size, eps, threads)

    def rotate(
        self, product: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, heads: int, head_dim: int
    ) -> None:
        """See ``RowPrograms``."""
        size = product.shape[-1]
        sizes = product.numel() // size, heads, head_dim, size
        places = product.data_ptr(), cosines.data_ptr(), sines.data_ptr()
        rotate(product.dtype)(*places, *sizes, torch.get_num_threads())

    def gate(self, product: torch.Tensor, outputs: torch.Tensor) -> None:
        """See ``RowPrograms``."""
        size = outputs.shape[-1]
        tokens = outputs.numel() // size
        gate(product.dtype)(product.data_ptr(), outputs.data_ptr(), tokens, size, torch.get_num_threads())
