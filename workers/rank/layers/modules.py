"""Modules that take the place of a model's own: attention with rotary positions, and gated layers (SwiGLU).

Attention is one product, one rotation in place, the paged attention, one product. A gated layer is two products, with
the activation and the gate in one pass between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from baton_serve.workers.rank.cache.attention import AttentionCall, call_active
from baton_serve.workers.rank.layers.linear import PackedLinear
from baton_serve.workers.rank.layers.row_programs import RowPrograms

#: The layers of such modules, by their names.
ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED_NAMES = ("gate_proj", "up_proj", "down_proj")


def can_take(arguments: Mapping[str, Any], call: AttentionCall) -> bool:
    """Whether an attention module's arguments are those of ``RotaryAttention``, with rotations of whole heads.

    ``call``: what it makes of them.
    """
    states, angles = arguments.get("hidden_states"), arguments.get("position_embeddings")
    if not isinstance(states, torch.Tensor) or not isinstance(angles, tuple) or len(angles) != 2:
        return False
    sizes, dtype = (1, states.shape[-2], call.head_dim), call.query.dtype
    return all(isinstance(one, torch.Tensor) and (*one.shape,) == sizes and one.dtype == dtype for one in angles)


class RotaryAttention(torch.nn.Module):
    """Does what an attention module of transformers does; ``product`` gives queries, keys and values side by side."""

    def __init__(
        self,
        layer_idx: int,
        product: PackedLinear,
        outputs: PackedLinear,
        call: AttentionCall,
        programs: RowPrograms,
    ) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.product, self.outputs = product, outputs
        # Not the call, which has the module whose weights are to go.
        self._sizes = call.heads, call.kv_heads, call.head_dim
        self._scaling, self._window = call.scaling, call.window
        self._programs = programs

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> tuple[torch.Tensor, None]:
        """The outputs ``[1, token, hidden]``; no weights. ``position_embeddings``: cosines and sines, of each token."""
        heads, kv_heads, head_dim = self._sizes
        # Calling a module takes longer than a small operation.
        product = self.product.forward(hidden_states).contiguous()
        tokens = product.shape[1]
        cos, sin = (angles.contiguous() for angles in position_embeddings)
        if cos.numel() != tokens * head_dim or cos.dtype != product.dtype:
            raise ValueError(f"rotations {tuple(cos.shape)} do not fit {tokens} tokens and heads of {head_dim}")
        self._programs.rotate(product, cos, sin, heads + kv_heads, head_dim)
        parts = product.view(1, tokens, -1, head_dim).transpose(1, 2)
        query, key, value = parts[:, :heads], parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :]
        call = AttentionCall(self, query, key, value, self._scaling, self._window, {})
        return self.outputs.forward(call_active(call).reshape(1, tokens, -1)), None


class GatedMLP(torch.nn.Module):
    """``down(silu(gate(x)) * up(x))`` for inputs ``[..., hidden]``; ``both`` is the product of gate and up."""

    def __init__(self, both: PackedLinear, down: PackedLinear, programs: RowPrograms) -> None:
        super().__init__()
        self.both, self.down = both, down
        self._programs = programs

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # Calling a module takes longer than a small operation.
        product = self.both.forward(inputs).contiguous()
        *sizes, size = product.shape
        gated = product.new_empty((*sizes, size // 2))
        self._programs.gate(product, gated)
        return self.down.forward(gated)
