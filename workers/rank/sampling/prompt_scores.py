"""Logprobs of a prompt's tokens: of each one, by the logits of the token before it.

The logits of a long prompt would take gigabytes: a row has as many numbers as the vocabulary has tokens. So only those
of some tokens are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from baton_serve.core.protocol.steps import PromptScores, Row
from baton_serve.workers.rank.sampling.sampler import logprobs_of
from baton_serve.workers.rank.sequences import RankSequence

#: Numbers in the logits that are in memory at a time: 64 MiB as float32, of which the computation needs three copies.
#: With a vocabulary of 150,000 tokens these are the logits of 111 tokens.
MAX_LOGITS = 1 << 24


class _Token(NamedTuple):
    """A token to score. ``place``: where on the token axis of the batch the token before it is."""

    token: int
    place: int
    num_top: int
    scores: PromptScores


class PromptTokens:
    """The tokens that one step scores, and their ``scores``."""

    def __init__(self, rows: Sequence[Row], sequences: Sequence[RankSequence], last_places: Sequence[int]) -> None:
        """What the rows ask for. ``last_places``: where on the token axis the last token of each row is."""
        self.scores: list[PromptScores] = []
        self._tokens: list[_Token] = []
        for row, sequence, last_place in zip(rows, sequences, last_places, strict=True):
            if row.score_from:
                self._add(row, sequence, last_place)

    def _add(self, row: Row, sequence: RankSequence, last_place: int) -> None:
        scores = PromptScores(row.seq, row.score_from, [], [], [], [])
        self.scores.append(scores)
        end = row.start + row.num_tokens
        num_top = sequence.sampling.num_prompt_logprobs or 0
        for index in range(row.score_from, min(end + 1, sequence.num_prompt)):
            self._tokens.append(_Token(sequence.tokens[index], last_place - (end - index), num_top, scores))

    def pieces(self, vocab_size: int) -> Iterator[Sequence[_Token]]:
        """The tokens in pieces whose logits may be in memory at a time."""
        size = max(1, MAX_LOGITS // vocab_size)
        for start in range(0, len(self._tokens), size):
            yield self._tokens[start : start + size]


def score(tokens: Sequence[_Token], logits: torch.Tensor) -> None:
    """Add the scores of a piece to those of the step. ``logits``: ``[token, vocabulary]`` of the places."""
    found = logprobs_of(logits.to(torch.float32), [one.token for one in tokens], max(one.num_top for one in tokens))
    # As vLLM counts: a token of which others are as likely is behind them.
    ranks = (found.all >= found.own).sum(dim=-1).tolist()
    own = found.own[:, 0].tolist()
    for one, logprob, rank, values, best in zip(tokens, own, ranks, found.top_values, found.top_tokens, strict=True):
        one.scores.logprobs.append(logprob)
        one.scores.ranks.append(rank)
        one.scores.top_tokens.append(best[: one.num_top])
        one.scores.top_logprobs.append(values[: one.num_top])
