"""Changes to the logits of a few tokens: biases, bans and penalties, for all rows at once.

Order and meaning are as in vLLM: bias, then bans (until ``min_tokens``, of words, and of all tokens but the allowed
ones, which no bias lifts), then the repetition penalty (over prompt and
output), then frequency and presence penalties (over the output only, as OpenAI defines them).

Where that leaves nothing, all tokens but the allowed ones stay banned, and nothing else: the bans of words and of
``min_tokens`` give way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from workers.rank.sampling.bad_words import completing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from core.protocol.steps import SamplingParams


class SamplingRow(Protocol):
    """What the sampler needs of a sequence; ``RankSequence`` implements it."""

    @property
    def sampling(self) -> SamplingParams: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def output_counts(self) -> Mapping[int, int]: ...
    @property
    def prompt_set(self) -> frozenset[int]: ...


class _Edits:
    """A list of (row, token, number) triples."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: list[int] = []
        self._tokens: list[int] = []
        self._numbers: list[float] = []

    def add(self, row: int, numbers: Iterable[tuple[int, float]]) -> None:
        # Token ids come from clients (logit_bias). The HTTP server refuses unknown ids; should one get here, it must
        # not end the rank.
        for token, number in numbers:
            if 0 <= token < self._vocab_size:
                self._rows.append(row)
                self._tokens.append(token)
                self._numbers.append(number)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def on(self, device: torch.device) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        index = torch.tensor([self._rows, self._tokens], device=device)
        return (index[0], index[1]), torch.tensor(self._numbers, dtype=torch.float32, device=device)


def is_untouched(params: SamplingParams, num_outputs: int) -> bool:
    """Whether no edit applies to this row now."""
    return (
        not params.logit_bias
        and not params.bad_words
        and params.allowed_token_ids is None
        and num_outputs >= params.min_tokens
        and params.repetition_penalty == 1.0
        and params.frequency_penalty == 0.0
        and params.presence_penalty == 0.0
    )


def edit(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Apply all edits to logits ``[row, vocabulary]`` (float32); returns a copy if any edit applies."""
    if all(is_untouched(row.sampling, row.num_outputs) for row in rows):
        return logits
    added, repeated, subtracted = (_Edits(logits.shape[1]) for _ in range(3))
    for index, row in enumerate(rows):
        params = row.sampling
        added.add(index, params.logit_bias.items())
        if row.num_outputs < params.min_tokens:
            added.add(index, ((token, float("-inf")) for token in params.min_tokens_banned))
        if params.bad_words:
            banned = completing(params.bad_words, row.tokens, row.num_outputs)
            added.add(index, ((token, float("-inf")) for token in banned))
        if params.repetition_penalty != 1.0:
            seen = row.prompt_set.union(row.output_counts)
            repeated.add(index, ((token, params.repetition_penalty) for token in seen))
        subtracted.add(index, _output_penalties(params, row.output_counts))
    edited = _apply(logits.clone(), added, repeated, subtracted)
    for index, row in enumerate(rows):
        if row.sampling.allowed_token_ids is not None:
            _keep_only(edited[index], row.sampling.allowed_token_ids)
    if any(_bans(row) for row in rows):
        for index in edited.isneginf().all(dim=-1).nonzero()[:, 0].tolist():
            edited[index] = logits[index]
            if rows[index].sampling.allowed_token_ids is not None:
                _keep_only(edited[index], rows[index].sampling.allowed_token_ids or ())
    return edited


def _bans(row: SamplingRow) -> bool:
    params = row.sampling
    return bool(params.bad_words) or params.allowed_token_ids is not None or row.num_outputs < params.min_tokens


def _keep_only(scores: torch.Tensor, tokens: Sequence[int]) -> None:
    """Ban all tokens of one row but these."""
    kept = torch.tensor([token for token in tokens if 0 <= token < len(scores)], dtype=torch.int64).to(scores.device)
    wanted = scores[kept]
    scores.fill_(float("-inf"))
    scores[kept] = wanted


def _apply(logits: torch.Tensor, added: _Edits, repeated: _Edits, subtracted: _Edits) -> torch.Tensor:
    if added:
        where, numbers = added.on(logits.device)
        logits.index_put_(where, numbers, accumulate=True)
    if repeated:
        where, factors = repeated.on(logits.device)
        now = logits[where]
        logits.index_put_(where, torch.where(now > 0, now / factors, now * factors))
    if subtracted:
        where, numbers = subtracted.on(logits.device)
        logits.index_put_(where, logits[where] - numbers)
    return logits


def _output_penalties(params: SamplingParams, counts: Mapping[int, int]) -> Iterable[tuple[int, float]]:
    if params.frequency_penalty == 0.0 and params.presence_penalty == 0.0:
        return ()
    return ((token, params.frequency_penalty * count + params.presence_penalty) for token, count in counts.items())
