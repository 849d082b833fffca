"""The graphs of steps with chunks of prompts, alone or beside rows that decode."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from workers.rank import distributed
from workers.rank.cache.batch import NO_ADAPTER, head_slots
from workers.rank.graphs.prefill_inputs import PrefillInputs
from workers.rank.graphs.sizes import fitting
from workers.rank.in_place.attention import AnyRows, InPlaceAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workers.rank.cache.batch import BatchRow
    from workers.rank.cache.kv_cache import KVCache
    from workers.rank.graphs.port import Recorder
    from workers.rank.in_place.port import RaggedKernel
    from workers.rank.loading.model import ModelShard

#: Sizes that are tried, beside the largest. A step keeps the device busy for longer than the host if the device ends
#: later than the host by more than this part of the time that the host took.
TRIED = frozenset({128, 256, 512, 1024, 2048})
LATER = 0.1


class PrefillGraphs:
    """Computes steps by graphs, each of which is for a number of tokens. See ``DecodeGraphs``, which is for rows of one
    token, and takes less time for these.
    """

    def __init__(
        self,
        model: ModelShard,
        kernel: RaggedKernel,
        cache: KVCache,
        recorder: Recorder,
        sizes: Sequence[int],
        max_rows: int,
    ) -> None:
        """Record all sizes that are worth it: those for which the host takes longer to start a step than the device to
        compute it. Others are better computed one operation at a time, as nothing has to be filled up then.

        ``cache`` has a spare block; ``sizes`` ascend; steps of more than ``max_rows`` rows do not fit. All ranks do
        this at the same time. Raises RuntimeError if steps cannot be recorded.
        """
        self._model = model
        self._kernel = kernel
        self._cache = cache
        self._max_rows = max_rows
        self._inputs = PrefillInputs(cache, sizes[-1], max_rows, model.max_model_len)
        self._head_slots = torch.from_numpy(head_slots(cache.shape)).to(cache.device)[:, None]
        self._inputs.fill([], [], sizes[0])
        one = self._compute(sizes[0])
        self._logits = torch.empty((max_rows, one.shape[1]), dtype=one.dtype, device=one.device)
        most = self._most_worth_it(sizes)
        self._sizes = [size for size in sizes if size <= most]
        # The largest comes first, as the others find its memory then.
        self._replays = {size: recorder(self._filled(size)) for size in reversed(self._sizes)}

    def __repr__(self) -> str:
        return f"<PrefillGraphs of {', '.join(map(str, self._sizes))} tokens>"

    @property
    def max_tokens(self) -> int:
        """The most tokens of a step that fits."""
        return self._sizes[-1]

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Whether there is a graph for a step of these rows. There is none for rows of adapters, nor where each row has
        one token: that is for ``DecodeGraphs``, which may be off.
        """
        return (
            any(row.num_tokens > 1 for row in rows)
            and len(rows) <= self._max_rows
            and sum(row.num_tokens for row in rows) <= self.max_tokens
            and all(row.adapter == NO_ADAPTER for row in rows)
        )

    def run(self, rows: Sequence[BatchRow], token_ids: Sequence[int]) -> torch.Tensor:
        """Compute a step that fits; returns the logits ``[row, vocabulary]`` of the last token of each row, which the
        next step overwrites. ``token_ids``: those of all rows, one row after the other.
        """
        size = fitting(self._sizes, len(token_ids))
        assert size is not None, "the caller has asked whether it fits"
        self._inputs.fill(rows, token_ids, size)
        self._replays[size]()
        return self._logits[: len(rows)]

    def _most_worth_it(self, sizes: Sequence[int]) -> int:
        """The largest size that is worth a graph, by trying some; the sizes below the first of these always are."""
        tried = [size for size in sizes if size in TRIED or size == sizes[-1]]
        # All of them, whatever was found, since the other ranks take part in each.
        are_worth_it = [self._is_worth_it(size) for size in tried]
        most = max(sizes[0], tried[0] - 1)
        for size, is_worth_it in zip(tried, are_worth_it, strict=True):
            if not is_worth_it:
                break
            most = size
        return distributed.minimum(most, self._cache.device)

    def _is_worth_it(self, size: int) -> bool:
        work = self._filled(size)
        work()  # the first time programs are compiled and memory is allocated
        self._wait()
        began_s = time.perf_counter()
        work()
        started_s = time.perf_counter()
        self._wait()
        return time.perf_counter() - started_s < LATER * (started_s - began_s)

    def _wait(self) -> None:
        if self._cache.device.type == "cuda":
            torch.cuda.synchronize(self._cache.device)

    def _filled(self, size: int) -> Callable[[], None]:
        """The work of a step, whose inputs are now rows in the spare block: those of another size would not fit."""
        self._wait()  # for what still reads the inputs of the size before
        self._inputs.fill([], [], size)

        def work() -> None:
            self._logits[: self._inputs.num_rows(size)].copy_(self._compute(size))

        return work

    def _compute(self, size: int) -> torch.Tensor:
        step = self._inputs.step(size)
        slots = (self._head_slots + step.slots).flatten()
        attend = InPlaceAttention(self._cache, slots, AnyRows(self._kernel, step.rows))
        return self._model.logits(attend, step.token_ids, step.positions, step.last_tokens)
