"""Starts the programs. Importing this needs the package ``triton``."""

from __future__ import annotations

import torch
import triton

from baton_serve.workers.rank.gpu.programs import (
    gate_program,
    rms_norm_program,
    rotate_program,
    store_program,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Numbers of one program where a row may be split.
PIECE = 1024


class TritonRows:
    """``RowPrograms`` on a GPU."""

    def takes(self, dtype: torch.dtype) -> bool:
        return dtype in DTYPES

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, eps: float) -> None:
        size = weight.numel()
        if inputs.numel():
            grid = (inputs.numel() // size,)
            rms_norm_program[grid](inputs, weight, outputs, eps, SIZE=size, BLOCK=triton.next_power_of_2(size))

    def rotate(
        self, product: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, heads: int, head_dim: int
    ) -> None:
        size = product.shape[-1]
        tokens = product.numel() // size
        if tokens:
            block = triton.next_power_of_2(head_dim // 2)
            rotate_program[(tokens, heads)](product, cosines, sines, size, HEAD_DIM=head_dim, BLOCK=block)

    def gate(self, product: torch.Tensor, outputs: torch.Tensor) -> None:
        size = outputs.shape[-1]
        if tokens := outputs.numel() // size:
            gate_program[(tokens, triton.cdiv(size, PIECE))](product, outputs, size, BLOCK=PIECE)


def store(layer: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor, value_offset: int) -> None:
    """Store K and V, both ``[kv_head, token, head_dim]`` with a contiguous last dimension.

    ``layer`` begins with the layer's first slot; ``slots`` ``[kv_head * token]`` count from there; ``value_offset`` is
    the distance of a token's value from its key, in numbers.
    """
    kv_heads, tokens, head_dim = key.shape
    store_program[(tokens, kv_heads)](
        layer,
        slots,
        key,
        value,
        tokens,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        value_offset,
        HEAD_DIM=head_dim,
        BLOCK=triton.next_power_of_2(head_dim),
    )
