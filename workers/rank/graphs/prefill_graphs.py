"""The graphs of steps with chunks of prompts, alone or beside rows that decode."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from baton_serve.workers.rank import distributed
from baton_serve.workers.rank.cache.batch import NO_ADAPTER, Batch, BatchRow, head_slots
from baton_serve.workers.rank.graphs.port import RecordError
from baton_serve.workers.rank.graphs.prefill_inputs import PrefillInputs
from baton_serve.workers.rank.graphs.sizes import fitting
from baton_serve.workers.rank.graphs.trial import ComparedRows, StepTime, is_bound_by_host, largest_worth_it
from baton_serve.workers.rank.in_place.attention import AnyRows, EqualRows, InPlaceAttention
from baton_serve.workers.rank.in_place.rows import paged_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton_serve.workers.rank.cache.kv_cache import KVCache
    from baton_serve.workers.rank.graphs.port import Recorder
    from baton_serve.workers.rank.in_place.attention import Rows
    from baton_serve.workers.rank.in_place.port import RaggedKernel
    from baton_serve.workers.rank.loading.model import ModelShard

#: Sizes that are tried, beside the largest, and how often each of them is.
TRIED = frozenset({128, 256, 512, 1024, 2048})
NUM_TRIALS = 3
#: The most tokens of a step in which the attention is compared; less if the cache has less room.
NUM_COMPARED = 128


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

        ``cache`` has a spare block, and nothing in the others; ``sizes`` ascend; steps of more than ``max_rows`` rows
        do not fit. All ranks do this at the same time. Raises RecordError if the attention of these steps is not that
        of others, on all ranks at once; RuntimeError if steps cannot be recorded.
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
        self._compare(sizes)
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

    def _compare(self, sizes: Sequence[int]) -> None:
        """Raises RecordError unless each layer's attention is what it is in steps that are not recorded.

        Two rows are computed from their beginning and then go on, one of them by a chunk.
        """
        size = fitting(sizes, NUM_COMPARED) or sizes[-1]
        block_size = self._cache.shape.block_size
        end = min(size // 2, self._cache.num_blocks // 2 * block_size, self._model.max_model_len)
        middle, num_blocks = end // 2, -(-end // block_size)
        if not middle:
            return
        first, second = range(num_blocks), range(num_blocks, 2 * num_blocks)
        beginnings = [BatchRow(0, end - 1, first), BatchRow(0, middle, second)]
        others = [BatchRow(end - 1, 1, first), BatchRow(middle, end - middle, second)]
        steps = [beginnings, others] if self._max_rows > 1 else [[row] for row in (*beginnings, *others)]
        are_alike = [self._compared(rows, size) for rows in steps]
        if not distributed.minimum(all(are_alike), self._cache.device):
            raise RecordError("the kernel's attention for rows of any length is wrong")

    def _compared(self, rows: Sequence[BatchRow], size: int) -> bool:
        batch = Batch(rows, self._cache.shape, self._cache.device)
        ordered = [rows[index] for index in batch.order]
        token_ids = [1 + number % (self._model.vocab_size - 1) for number in range(batch.num_tokens)]
        self._wait()
        self._inputs.fill(ordered, token_ids, size)
        found = AnyRows(self._kernel, self._inputs.step(size).rows)
        expected = EqualRows(self._kernel, paged_rows(batch, self._cache.device))
        compared = ComparedRows(found, expected, batch.num_tokens)
        self._compute(size, compared)
        return compared.are_alike

    def _most_worth_it(self, sizes: Sequence[int]) -> int:
        # All that are tried, whatever was found, since the other ranks take part in each.
        tried = {size: self._is_worth_it(size) for size in sizes if size in TRIED or size == sizes[-1]}
        return distributed.minimum(largest_worth_it(sizes, tried), self._cache.device)

    def _is_worth_it(self, size: int) -> bool:
        work = self._filled(size)
        work()  # the first time programs are compiled and memory is allocated
        return is_bound_by_host([self._timed(work) for _ in range(NUM_TRIALS)])

    def _timed(self, work: Callable[[], None]) -> StepTime:
        distributed.minimum(0, self._cache.device)  # the ranks begin together
        self._wait()
        began_s = time.perf_counter()
        work()
        started_s = time.perf_counter()
        self._wait()
        return StepTime(started_s - began_s, time.perf_counter() - started_s)

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

    def _compute(self, size: int, rows: Rows | None = None) -> torch.Tensor:
        """``rows``: those of the step if none are given."""
        step = self._inputs.step(size)
        slots = (self._head_slots + step.slots).flatten()
        attend = InPlaceAttention(self._cache, slots, rows or AnyRows(self._kernel, step.rows))
        return self._model.logits(attend, step.token_ids, step.positions, step.last_tokens)
