"""The graphs of decode steps: which one computes a step, and what each of them computes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import torch

from baton_serve.workers.rank.cache.batch import NO_ADAPTER, BatchRow, head_slots
from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.graphs.cuda_recorder import Recorder
from baton_serve.workers.rank.graphs.decode_inputs import DecodeInputs
from baton_serve.workers.rank.in_place.attention import InPlaceAttention
from baton_serve.workers.rank.in_place.rows import Kernel
from baton_serve.workers.rank.loading.model import ModelShard

#: A larger step keeps the device busy for longer than Python takes to start it.
MAX_ROWS = 256


def graph_sizes(max_rows: int) -> list[int]:
    """Powers of two to 8, then multiples of 8 to 64, then of 32; ``max_rows`` itself is the last, if not above 256."""
    most = min(max_rows, MAX_ROWS)
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_ROWS, 32)]
    return [size for size in steps if size < most] + [most]


class DecodeGraphs:
    """Computes decode steps by graphs. A size is recorded once, and never again: nothing that differs between two steps
    of a size is a part of the recording, it is all in the inputs.
    """

    def __init__(
        self, model: ModelShard, kernel: Kernel, cache: KVCache, recorder: Recorder, sizes: Sequence[int]
    ) -> None:
        """Record all sizes.

        ``cache`` has a spare block; ``sizes`` ascend. All ranks do this at the same time. Raises RuntimeError if steps
        cannot be recorded.
        """
        self._model = model
        self._kernel = kernel
        self._cache = cache
        self._sizes = sizes
        self._inputs = DecodeInputs(cache, sizes[-1], model.max_model_len)
        self._head_slots = torch.from_numpy(head_slots(cache.shape)).to(cache.device)[:, None]
        one = self._compute(sizes[0])
        self._logits = torch.empty((sizes[-1], one.shape[1]), dtype=one.dtype, device=one.device)
        # The largest comes first: the others find its memory, which is free again, and take no more.
        self._replays = {size: recorder(partial(self._work, size)) for size in reversed(sizes)}

    def __repr__(self) -> str:
        return f"<DecodeGraphs of {', '.join(map(str, self._sizes))} rows>"

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Whether there is a graph for a step of these rows. There is none for rows of adapters."""
        return len(rows) <= self._sizes[-1] and all(row.num_tokens == 1 and row.adapter == NO_ADAPTER for row in rows)

    def run(self, rows: Sequence[BatchRow], token_ids: Sequence[int]) -> torch.Tensor:
        """Compute a step that fits; returns logits ``[row, vocabulary]``, which the next step overwrites."""
        size = self._sizes[bisect_left(self._sizes, len(rows))]
        self._inputs.fill(rows, token_ids, size)
        self._replays[size]()
        return self._logits[: len(rows)]

    def _work(self, size: int) -> None:
        self._logits[:size].copy_(self._compute(size))

    def _compute(self, size: int) -> torch.Tensor:
        step = self._inputs.step(size)
        slots = (self._head_slots + step.slots).flatten()
        attend = InPlaceAttention(self._cache, slots, self._kernel, [step.paged])
        return self._model.logits(attend, step.token_ids, step.positions)
