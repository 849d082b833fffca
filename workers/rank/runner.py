"""Executes a step: one forward pass over its rows, then sampling."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from core.protocol.steps import Sampled, Step, StepResult
from workers.rank.cache.batch import Batch, BatchRow, tail_blocks
from workers.rank.grammar.masks import Masks
from workers.rank.sampling.sampler import sample
from workers.rank.sequences import RankSequence, SequenceTable

if TYPE_CHECKING:
    from core.protocol.steps import Row
    from workers.rank.cache.kv_cache import KVCache
    from workers.rank.grammar.library import GrammarLibrary
    from workers.rank.graphs.decode_graphs import DecodeGraphs
    from workers.rank.loading.model import ModelShard
    from workers.transfer.versions import VersionTable


class Runner:
    """Executes steps. Only the runner and block reads write to the cache. Not thread-safe."""

    def __init__(
        self,
        model: ModelShard,
        cache: KVCache,
        versions: VersionTable,
        *,
        with_logprobs: bool = True,
        graphs: DecodeGraphs | None = None,
        grammars: GrammarLibrary | None = None,
    ) -> None:
        """``with_logprobs``: whether results have logprobs; those of one rank per engine are enough.

        ``grammars``: what sequences with a grammar follow.
        ``graphs`` compute the decode steps that fit; None: all steps are computed one operation at a time.
        """
        self._graphs = graphs
        self._with_logprobs = with_logprobs
        self._model = model
        self._cache = cache
        self._versions = versions
        self._grammars = grammars
        self.sequences = SequenceTable(
            model.vocab_size,
            model.max_model_len,
            cache.shape.block_size,
            cache.num_blocks,
            grammars,
            model.adapters.numbers,
        )

    def execute(self, step: Step) -> StepResult:
        """Execute a step. When this returns, the device has finished, and readers can see the blocks that it wrote.

        Raises StepError for a step that contradicts earlier ones, and torch's errors (out of memory). After an error
        the content of the cache is unknown, so the rank has to end.
        """
        began = time.monotonic()
        self._versions.store(step.fresh)
        for seq in step.dropped:
            self.sequences.drop(seq)
        for new in step.started:
            self.sequences.start(new)
        sampled = self._run(step.rows) if step.rows else []
        return StepResult(step.step_id, sampled, time.monotonic() - began)

    def _run(self, rows: list[Row]) -> list[Sampled]:
        sequences = [self.sequences.take(row) for row in rows]
        logits = self._forward(rows, sequences)
        drawing = [sequence for row, sequence in zip(rows, sequences, strict=True) if row.sample]
        masks = None if self._grammars is None else Masks.of(drawing, self._grammars.mask_words)
        draws = sample(logits, drawing, masks, with_logprobs=self._with_logprobs) if drawing else []
        sampled = []
        for sequence, draw in zip(drawing, draws, strict=True):
            sequence.append(draw.token)
            error = "" if sequence.constraint is None else sequence.constraint.error
            sampled.append(Sampled(sequence.seq, draw.token, draw.logprob, draw.top, error))
        if self._cache.device.type == "cuda":
            torch.cuda.synchronize(self._cache.device)
        return sampled

    def _forward(self, rows: list[Row], sequences: list[RankSequence]) -> torch.Tensor:
        """Run the forward pass; returns the logits of the rows that sample, in the order of the rows."""
        places = [
            BatchRow(row.start, row.num_tokens, sequence.block_ids, sequence.adapter)
            for row, sequence in zip(rows, sequences, strict=True)
        ]
        self._cache.clear(tail_blocks(places, self._cache.shape.block_size))
        if self._graphs is not None and self._graphs.fits(places):
            token_ids = [sequence.tokens[row.start] for row, sequence in zip(rows, sequences, strict=True)]
            logits = self._graphs.run(places, token_ids)
            wanted = [i for i, row in enumerate(rows) if row.sample]
            return logits if len(wanted) == len(rows) else logits[wanted]
        batch = Batch(places, self._cache.shape, self._cache.device)
        ids: list[int] = []
        for i in batch.order:
            ids += sequences[i].tokens[rows[i].start : rows[i].start + rows[i].num_tokens]
        wanted = [batch.last_tokens[i] for i, row in enumerate(rows) if row.sample]
        device = self._cache.device
        return self._model.forward(
            self._cache, batch, torch.tensor(ids, device=device), torch.tensor(wanted, dtype=torch.int64, device=device)
        )
