"""A ``Kernel`` for CPUs: all of it by native programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.rank.native.attention.causal import attend_causally
from workers.rank.native.attention.decode import attend_one_token

if TYPE_CHECKING:
    import torch

    from workers.rank.in_place.port import PagedRows


class NativeKernel:
    """Attention in place. Is a ``Kernel``; its tensors are on the CPU."""

    def __call__(
        self,
        query: torch.Tensor,
        blocks: torch.Tensor,
        rows: PagedRows,
        scaling: float,
        window: int | None,
        out: torch.Tensor,
    ) -> None:
        """See ``Kernel``."""
        if rows.num_tokens == 1:
            attend_one_token(query, blocks, rows.tables, rows.ends, scaling, window, out)
            return
        for number, end in enumerate(rows.ends.tolist()):
            mine = slice(number * rows.num_tokens, (number + 1) * rows.num_tokens)
            first = max(0, end - rows.num_tokens - window + 1) if window else 0
            key, value = _gathered(blocks, rows.tables[number], first, end)
            attend_causally(query[:, mine], key, value, scaling, window, out[mine])


def _gathered(blocks: torch.Tensor, table: torch.Tensor, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, ``[kv_head, token, head_dim]``, of one row's tokens before ``end``, from the block of the token
    ``first`` on.
    """
    _, kv_heads, _, block_size, head_dim = blocks.shape
    first_block = first // block_size
    found = blocks.index_select(0, table[first_block : -(-end // block_size)])
    both = found.permute(2, 1, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)[:, :, : end - first_block * block_size]
    return both[0], both[1]
