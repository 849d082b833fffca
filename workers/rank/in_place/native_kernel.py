"""A ``Kernel`` for CPUs: all of it by native programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.workers.rank.native.attention.causal import attend_in_blocks
from baton_serve.workers.rank.native.attention.decode import attend_one_token

if TYPE_CHECKING:
    import torch

    from baton_serve.workers.rank.in_place.port import PagedRows


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
            attend_in_blocks(query[:, mine], blocks, rows.tables[number], end, scaling, window, out[mine])
