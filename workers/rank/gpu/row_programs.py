"""Starts the programs for tokens by themselves. Importing this needs the package ``triton``."""

from __future__ import annotations

import torch
import triton

from baton_serve.workers.rank.gpu.programs import gate_program, rms_norm_program, rotate_program

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Numbers of one program where a row may be split.
PIECE = 1024


class TritonRows:
    """``RowPrograms`` on a GPU."""

    def takes(self, dtype: torch.dtype) -> bool:
        """See ``RowPrograms``."""
        return dtype in DTYPES

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, eps: float) -> None:
        """See ``RowPrograms``."""
        size = weight.numel()
        if inputs.numel():
            grid = (inputs.numel() // size,)
            rms_norm_program[grid](inputs, weight, outputs, eps, SIZE=size, BLOCK=triton.next_power_of_2(size))

    def rotate(
        self, product: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, heads: int, head_dim: int
    ) -> None:
        """See ``RowPrograms``."""
        size = product.shape[-1]
        tokens = product.numel() // size
        if tokens:
            block = triton.next_power_of_2(head_dim // 2)
            rotate_program[(tokens, heads)](product, cosines, sines, size, HEAD_DIM=head_dim, BLOCK=block)

    def gate(self, product: torch.Tensor, outputs: torch.Tensor) -> None:
        """See ``RowPrograms``."""
        size = outputs.shape[-1]
        if tokens := outputs.numel() // size:
            gate_program[(tokens, triton.cdiv(size, PIECE))](product, outputs, size, BLOCK=PIECE)
