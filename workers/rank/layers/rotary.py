"""Attention modules with rotary positions as one product, one rotation in place, the paged attention, one product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from baton_serve.workers.rank.cache.attention import call_active

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton_serve.workers.rank.layers.linear import PackedLinear
    from baton_serve.workers.rank.layers.port import RowPrograms
    from baton_serve.workers.rank.layers.trials import AttentionCall

#: The layers of such a module, by their names.
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


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
        self._call = call
        self._programs = programs

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> tuple[torch.Tensor, None]:
        """The outputs ``[1, token, hidden]``; no weights. ``position_embeddings``: cosines and sines, of each token."""
        heads, kv_heads, head_dim = self._call.heads, self._call.kv_heads, self._call.head_dim
        # Calling a module takes longer than a small operation.
        product = self.product.forward(hidden_states).contiguous()
        tokens = product.shape[1]
        cos, sin = (angles.contiguous() for angles in position_embeddings)
        if cos.numel() != tokens * head_dim or cos.dtype != product.dtype:
            raise ValueError(f"rotations {tuple(cos.shape)} do not fit {tokens} tokens and heads of {head_dim}")
        self._programs.rotate(product, cos, sin, heads + kv_heads, head_dim)
        parts = product.view(1, tokens, -1, head_dim).transpose(1, 2)
        attended = call_active(
            self,
            parts[:, :heads],
            parts[:, heads : heads + kv_heads],
            parts[:, heads + kv_heads :],
            self._call.scaling,
            self._call.window,
            {},
        )
        return self.outputs.forward(attended.reshape(1, tokens, -1)), None
