"""The graphs of a rank: which one computes a step, and what each of them computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from workers.rank.cache.batch import NO_ADAPTER
from workers.rank.graphs.inputs import DecodeInputs
from workers.rank.graphs.sizes import fitting
from workers.rank.in_place.attention import InPlaceAttention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.rank.cache.batch import BatchRow
    from workers.rank.cache.kv_cache import KVCache
    from workers.rank.graphs.port import Recorder, Replay
    from workers.rank.in_place.port import Kernel
    from workers.rank.loading.model import ModelShard


class DecodeGraphs:
    """Computes decode steps by graphs. Everything is recorded at the start, and never again: nothing that differs
    between two steps of a size is a part of the recording, it is all in the inputs.
    """

    def __init__(
        self, model: ModelShard, kernel: Kernel, cache: KVCache, recorder: Recorder, sizes: Sequence[int]
    ) -> None:
        """``cache`` has a spare block; ``sizes`` ascend. All ranks do this at the same time."""
        self._model = model
        self._kernel = kernel
        self._cache = cache
        self._sizes = sizes
        self._inputs = DecodeInputs(cache, sizes[-1], model.max_model_len)
        self._head_slots = torch.arange(cache.shape.num_kv_heads, device=cache.device)[:, None] * (
            cache.shape.pieces_per_head * cache.shape.block_size
        )
        one = self._compute(sizes[0])
        self._logits = torch.zeros((sizes[-1], one.shape[1]), dtype=one.dtype, device=one.device)
        # The largest comes first: the others find its memory, which is free again, and take no more.
        self._replays = {size: self._record(recorder, size) for size in reversed(sizes)}

    def __repr__(self) -> str:
        return f"<DecodeGraphs of {', '.join(map(str, self._sizes))} rows>"

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Whether there is a graph for a step of these rows. There is none for rows of adapters."""
        return all(row.num_tokens == 1 and row.adapter == NO_ADAPTER for row in rows) and (
            fitting(self._sizes, len(rows)) is not None
        )

    def run(self, rows: Sequence[BatchRow], token_ids: Sequence[int]) -> torch.Tensor:
        """Compute a step that fits; returns logits ``[row, vocabulary]``, which the next step overwrites."""
        size = fitting(self._sizes, len(rows))
        assert size is not None, "the caller has asked whether it fits"
        self._inputs.fill(rows, token_ids, size)
        self._replays[size]()
        return self._logits[: len(rows)]

    def _record(self, recorder: Recorder, size: int) -> Replay:
        def work() -> None:
            self._logits[:size].copy_(self._compute(size))

        return recorder(work)

    def _compute(self, size: int) -> torch.Tensor:
        step = self._inputs.step(size)
        slots = (self._head_slots + step.slots).flatten()
        attend = InPlaceAttention(self._kernel, self._cache, slots, [step.paged])
        return self._model.logits(attend, step.token_ids, step.positions)
