"""The sequences that a rank knows, from the scheduler's messages and from the tokens that the rank samples itself."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from baton_serve.core.protocol.steps import NewSequence, Row
from baton_serve.workers.rank.cache.batch import NO_ADAPTER
from baton_serve.workers.rank.grammar.library import Constraint, GrammarLibrary
from baton_serve.workers.rank.row_edits import row_edits
from baton_serve.workers.rank_protocol.errors import StepError


class RankSequence:
    """Tokens, block table and sampling parameters of one sequence. ``tokens`` are prompt and outputs."""

    def __init__(
        self, start: NewSequence, vocab_size: int, constraint: Constraint | None = None, adapter: int = NO_ADAPTER
    ) -> None:
        self.seq = start.seq
        #: Number of the adapter that computes it.
        self.adapter = adapter
        self.tokens = [*start.prompt_token_ids, *start.output_token_ids]
        self.num_prompt = len(start.prompt_token_ids)
        self.sampling = start.sampling
        # An array of C's integers, as numpy copies the tables of all sequences in every step.
        self.block_ids = array("i", start.block_ids)
        #: What its parameters do to logits; None: nothing.
        self.edits = row_edits(start.sampling, vocab_size, start.prompt_token_ids, start.output_token_ids)
        #: Which tokens may come next; None: any.
        self.constraint = constraint

    def __repr__(self) -> str:
        return f"<RankSequence {self.seq}: {self.num_prompt}+{self.num_outputs} tokens, {len(self.block_ids)} blocks>"

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.num_prompt

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if self.edits is not None:
            self.edits.append(token)
        if self.constraint is not None:
            self.constraint.append(token)


class SequenceTable:
    """All sequences by id."""

    def __init__(
        self,
        vocab_size: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
        grammars: GrammarLibrary,
        adapters: Mapping[str, int],
    ) -> None:
        """``grammars``: what sequences follow. ``adapters``: numbers of those that they may have, by fingerprint."""
        self._grammars = grammars
        self._adapters = adapters
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._by_id: dict[int, RankSequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def start(self, new: NewSequence) -> None:
        """Add a sequence, or replace the one with the same id. Raises StepError for unknown tokens or blocks."""
        ids = new.prompt_token_ids + new.output_token_ids
        if not ids or min(ids) < 0 or max(ids) >= self._vocab_size:
            raise StepError(f"sequence {new.seq} has no tokens, or some outside the vocabulary of {self._vocab_size}")
        self._check_blocks(new.seq, new.block_ids)
        constraint = self._grammars.follow(new.grammar, new.output_token_ids) if new.grammar else None
        self._by_id[new.seq] = RankSequence(new, self._vocab_size, constraint, self._adapter(new))

    def _adapter(self, new: NewSequence) -> int:
        if not new.adapter:
            return NO_ADAPTER
        if new.adapter not in self._adapters:
            raise StepError(f"sequence {new.seq} has an adapter that this rank has not loaded")
        return self._adapters[new.adapter]

    def drop(self, seq: int) -> None:
        """Forget a sequence; does nothing if the id is unknown, because the sequence ended before its first step."""
        self._by_id.pop(seq, None)

    def take(self, row: Row) -> RankSequence:
        """The sequence of a row, after adding the row's new blocks. Raises StepError if the row cannot be computed."""
        sequence = self._by_id.get(row.seq)
        if sequence is None:
            raise StepError(f"a row for the unknown sequence {row.seq}")
        self._check_blocks(row.seq, row.new_block_ids)
        end = row.start + row.num_tokens
        known = len(sequence.tokens)
        if row.num_tokens < 1 or row.start < 0 or end > known or end > self._max_model_len:
            raise StepError(f"{sequence} cannot compute tokens {row.start} to {end}")
        if row.sample and end != known:
            raise StepError(f"{sequence} cannot sample after token {end}")
        if row.score_from and not row.start < row.score_from <= min(end, sequence.num_prompt - 1):
            raise StepError(f"{sequence} cannot score token {row.score_from} by tokens {row.start} to {end}")
        if (len(sequence.block_ids) + len(row.new_block_ids)) * self._block_size < end:
            raise StepError(f"{sequence} has no block for token {end - 1}")
        sequence.block_ids.extend(row.new_block_ids)
        return sequence

    def _check_blocks(self, seq: int, block_ids: list[int]) -> None:
        if block_ids and not 0 <= min(block_ids) <= max(block_ids) < self._num_blocks:
            raise StepError(f"sequence {seq} is given blocks outside 0 to {self._num_blocks - 1}")
