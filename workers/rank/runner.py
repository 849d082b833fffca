"""Executes a step: one forward pass over its rows, then sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from baton_serve.core.protocol.steps import PromptScores, Row, Sampled, Step, StepResult
from baton_serve.workers.rank import distributed
from baton_serve.workers.rank.cache.attention import Attend
from baton_serve.workers.rank.cache.batch import Batch, BatchRow, tail_blocks
from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.device import wait_for_step
from baton_serve.workers.rank.grammar.library import GrammarLibrary
from baton_serve.workers.rank.grammar.masks import MaskWriter
from baton_serve.workers.rank.graphs.decode_graphs import DecodeGraphs
from baton_serve.workers.rank.loading.model import ModelShard
from baton_serve.workers.rank.sampling.prompt_scores import PromptTokens, score
from baton_serve.workers.rank.sampling.sampler import sample
from baton_serve.workers.rank.sequences import RankSequence, SequenceTable
from baton_serve.workers.transfer.versions import VersionTable


class Runner:
    """Executes steps. Only the runner and block reads write to the cache. Not thread-safe."""

    def __init__(
        self,
        model: ModelShard,
        cache: KVCache,
        versions: VersionTable,
        grammars: GrammarLibrary,
        *,
        samples: bool = True,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """``samples``: whether this rank samples and scores, as the first one of an engine does for all of them.

        ``grammars``: what sequences with a grammar follow.
        ``graphs`` compute the steps that fit; all others are computed one operation at a time.
        """
        self._graphs = graphs
        self._samples = samples
        self._model = model
        self._cache = cache
        self._versions = versions
        self._grammars = grammars
        self._masks = MaskWriter()
        self.sequences = SequenceTable(
            model.vocab_size,
            model.max_model_len,
            cache.shape.block_size,
            cache.num_blocks,
            grammars,
            model.adapters.numbers,
        )

    def execute(self, step: Step) -> StepResult:
        """Execute a step. When this returns, the device has finished it, and readers can see the blocks that it wrote.

        Raises StepError for a step that contradicts earlier ones, and torch's errors (out of memory). After an error
        the content of the cache is unknown, so the rank has to end.
        """
        began = time.monotonic()
        self._versions.store(step.fresh)
        for seq in step.dropped:
            self.sequences.drop(seq)
        for new in step.started:
            self.sequences.start(new)
        sampled, scores = self._run(step.rows) if step.rows else ([], [])
        return StepResult(step.step_id, sampled, time.monotonic() - began, scores)

    def _run(self, rows: list[Row]) -> tuple[list[Sampled], list[PromptScores]]:
        sequences = [self.sequences.take(row) for row in rows]
        drawing = [sequence for row, sequence in zip(rows, sequences, strict=True) if row.sample]
        masks = None
        if self._samples:
            masks = self._masks.begin([sequence.constraint for sequence in drawing], self._grammars.mask_words)
        logits, scores = self._forward(rows, sequences)
        draws = sample(logits, drawing, masks) if drawing and self._samples else []
        if drawing:  # ranks that each sampled for themselves would differ where their logits differ in a rounding
            tokens = distributed.of_first_rank([draw.token for draw in draws], len(drawing), self._cache.device)
            for sequence, token in zip(drawing, tokens, strict=True):
                sequence.append(token)
        sampled = [
            Sampled(sequence.seq, draw.token, draw.logprob, draw.top, _error_of(sequence))
            for sequence, draw in zip(drawing, draws, strict=bool(draws))
        ]
        wait_for_step(self._cache.device)
        return sampled, scores

    def _forward(self, rows: list[Row], sequences: list[RankSequence]) -> tuple[torch.Tensor, list[PromptScores]]:
        """Run the forward pass; returns the logits of the rows that sample, in the order of the rows, and the scores of
        those that score.
        """
        places = [
            BatchRow(row.start, row.num_tokens, sequence.block_ids, sequence.adapter)
            for row, sequence in zip(rows, sequences, strict=True)
        ]
        self._cache.clear(tail_blocks(places, self._cache.shape.block_size))
        scores_some = any(row.score_from for row in rows)
        if self._graphs is not None and not scores_some and self._graphs.fits(places):
            logits = self._graphs.run(places, _inputs(rows, sequences, range(len(rows))))
            wanted = [i for i, row in enumerate(rows) if row.sample]
            return logits if len(wanted) == len(rows) else logits[wanted], []
        batch = Batch(places, self._cache.shape, self._cache.device)
        wanted = [batch.last_tokens[i] for i, row in enumerate(rows) if row.sample]
        token_ids = torch.tensor(_inputs(rows, sequences, batch.order), device=self._cache.device)
        compute = partial(self._logits, self._model.attention(self._cache, batch), token_ids, batch.positions)
        with self._model.adapters.selection.running(batch):
            if not scores_some:
                return compute(wanted), []
            with self._model.layers_once():
                return compute(wanted), self._score(PromptTokens(rows, sequences, batch.last_tokens), compute)

    def _score(self, tokens: PromptTokens, compute: Callable[[list[int]], torch.Tensor]) -> list[PromptScores]:
        """The scores of tokens of prompts. All ranks compute the logits together, and one of them reports."""
        for piece in tokens.pieces(self._model.vocab_size):
            logits = compute([token.place for token in piece])
            if self._samples:
                score(piece, logits)
        return tokens.scores if self._samples else []

    def _logits(
        self, attend: Attend, token_ids: torch.Tensor, positions: torch.Tensor, places: list[int]
    ) -> torch.Tensor:
        """The logits of the tokens at these places of the token axis."""
        wanted = torch.tensor(places, dtype=torch.int64, device=self._cache.device)
        return self._model.logits(attend, token_ids, positions, wanted)


def _error_of(sequence: RankSequence) -> str:
    """Why the sequence's grammar cannot go on; empty if it can, or there is none."""
    return "" if sequence.constraint is None else sequence.constraint.error


def _inputs(rows: Sequence[Row], sequences: Sequence[RankSequence], order: Iterable[int]) -> list[int]:
    """The tokens of the rows, one row after the other in this order."""
    ids: list[int] = []
    for i in order:
        ids += sequences[i].tokens[rows[i].start : rows[i].start + rows[i].num_tokens]
    return ids
