"""The graphs of decode steps: which one computes a step, and what each of them computes."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch

from baton_serve.workers.rank.cache.batch import NO_ADAPTER, BatchRow, head_slots
from baton_serve.workers.rank.graphs.decode_inputs import DecodeInputs
from baton_serve.workers.rank.graphs.port import RecordError
from baton_serve.workers.rank.graphs.sizes import fitting
from baton_serve.workers.rank.in_place.attention import EqualRows, InPlaceAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton_serve.workers.rank.cache.kv_cache import KVCache
    from baton_serve.workers.rank.graphs.port import Recorder, Replay
    from baton_serve.workers.rank.in_place.port import Kernel
    from baton_serve.workers.rank.loading.model import ModelShard

#: With a quick recorder, so many sizes are recorded and tried at the start, and more for so long, as small models have
#: steps so short that recordings would show.
NUM_TRIED, START_S = 2, 0.5
#: The others are recorded in the step that needs them for this many-th time. Many numbers of rows come once, when
#: streams begin or end. To record takes about as long as 16 steps lose without a recording (5M and 50M models), so at
#: worst, when a number never comes again, half as much is lost before as the recording then costs.
RECORDED_AT = 8


class _Kind(NamedTuple):
    """What a recording is for: so many rows; ``adapted``: some of them may have an adapter."""

    size: int
    adapted: bool = False


class DecodeGraphs:
    """Computes decode steps by graphs. A kind is recorded once, and never again: nothing that differs between two steps
    of a kind is a part of the recording, it is all in the inputs.
    """

    def __init__(
        self, model: ModelShard, kernel: Kernel, cache: KVCache, recorder: Recorder, sizes: Sequence[int]
    ) -> None:
        """Record all sizes; with a quick recorder the first ones, and the others once some steps have needed them.

        ``cache`` has a spare block; ``sizes`` ascend. All ranks do this at the same time. Raises RuntimeError if steps
        cannot be recorded.
        """
        self._model = model
        self._kernel = kernel
        self._cache = cache
        self._recorder = recorder
        self._sizes = sizes
        self._inputs = DecodeInputs(cache, sizes[-1], model.max_model_len)
        self._head_slots = torch.from_numpy(head_slots(cache.shape)).to(cache.device)[:, None]
        #: Steps of kinds that are not recorded.
        self._num_plain: Counter[_Kind] = Counter()
        #: Whether steps with rows of adapters are recorded, beside those without.
        self._adapts = recorder.is_quick and model.adapters.have_programs()
        one = self._compute(_Kind(sizes[0]))
        # On a CPU memory that is never written is never taken.
        self._logits = torch.empty((sizes[-1], one.shape[1]), dtype=one.dtype, device=one.device)
        # The largest comes first: the others find its memory, which is free again, and take no more.
        at_start = sizes[:NUM_TRIED] if recorder.is_quick else sizes
        kinds = [kind for size in at_start for kind in self._kinds(size)]
        self._replays = {kind: recorder(self._work(kind)) for kind in reversed(kinds)}
        if recorder.is_quick:
            for kind in kinds:
                self._try(kind)
            until_s = time.monotonic() + START_S
            for kind in [kind for size in sizes[NUM_TRIED:] for kind in self._kinds(size)]:
                if time.monotonic() > until_s:
                    break
                self._replays[kind] = self._recorded(kind)

    def __repr__(self) -> str:
        return f"<DecodeGraphs of {', '.join(map(str, sorted({kind.size for kind in self._replays})))} rows>"

    def _kinds(self, size: int) -> list[_Kind]:
        return [_Kind(size), _Kind(size, adapted=True)] if self._adapts else [_Kind(size)]

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Whether there is a graph for a step of these rows. On a GPU there is none for rows of adapters."""
        return all(row.num_tokens == 1 and (self._adapts or row.adapter == NO_ADAPTER) for row in rows) and (
            fitting(self._sizes, len(rows)) is not None
        )

    def run(self, rows: Sequence[BatchRow], token_ids: Sequence[int]) -> torch.Tensor:
        """Compute a step that fits; returns logits ``[row, vocabulary]``, which the next step overwrites."""
        size = fitting(self._sizes, len(rows))
        assert size is not None, "the caller has asked whether it fits"
        self._inputs.fill(rows, token_ids, size)
        kind = _Kind(size, any(row.adapter != NO_ADAPTER for row in rows))
        if kind in self._replays:
            self._replays[kind]()
        else:
            self._run_plain(kind)
        return self._logits[: len(rows)]

    def _run_plain(self, kind: _Kind) -> None:
        self._num_plain[kind] += 1
        if self._num_plain[kind] < RECORDED_AT:
            self._work(kind)()
        else:
            self._replays[kind] = self._recorded(kind)

    def _recorded(self, kind: _Kind) -> Replay:
        """Compute a step, and record it. One that cannot be recorded, as others could, is computed as it is."""
        work = self._work(kind)
        try:
            return self._recorder(work)
        except RecordError:
            work()
            return work

    def _work(self, kind: _Kind) -> Callable[[], None]:
        def work() -> None:
            self._logits[: kind.size].copy_(self._compute(kind))

        return work

    def _try(self, kind: _Kind) -> None:
        """Raises RuntimeError if a replay gives other logits than the step itself, for rows that were not recorded."""
        size = kind.size
        # Two blocks behind the beginning, if the model has as many positions, and each row at a place of its own.
        most = min(2 * self._cache.shape.block_size + size, self._model.max_model_len)
        blocks = [self._cache.spare_block] * -(-most // self._cache.shape.block_size)
        # When this was recorded, no row had an adapter.
        adapters = [
            NO_ADAPTER if not kind.adapted else (size - row) % (len(self._model.adapters) + 1) - 1
            for row in range(size)
        ]
        rows = [BatchRow(max(0, most - 1 - row), 1, blocks, adapter) for row, adapter in enumerate(adapters)]
        self._inputs.fill(rows, range(1, size + 1), size)
        self._work(kind)()
        expected = self._logits[:size].clone()
        self._logits[:size] = 0
        self._replays[kind]()
        found = self._logits[:size]
        if not bool(((found == expected) | (found.isnan() & expected.isnan())).all()):
            raise RecordError("a replay gives other logits than the step itself")

    def _compute(self, kind: _Kind) -> torch.Tensor:
        step = self._inputs.step(kind.size)
        slots = (self._head_slots + step.slots).flatten()
        attend = InPlaceAttention(self._cache, slots, EqualRows(self._kernel, [step.paged]))
        selection = self._model.adapters.selection
        with selection.numbered(step.adapters) if kind.adapted else nullcontext():
            return self._model.logits(attend, step.token_ids, step.positions)
