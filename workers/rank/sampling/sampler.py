"""Samples tokens from logits: greedily, or by Gumbel-max among the tokens that top_k, top_p and min_p keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from baton_serve.core.protocol.steps import SamplingParams
from baton_serve.workers.rank.grammar.masks import Masks
from baton_serve.workers.rank.sampling.logit_edits import edit
from baton_serve.workers.rank.sampling.noise import add_gumbel, stream_key
from baton_serve.workers.rank.sequences import RankSequence

#: Below this temperature sampling is greedy, because logits divided by the temperature overflow float32 (vLLM's bound).
GREEDY_BELOW = 1e-5


@dataclass(slots=True)
class Draw:
    """The sampled token of one row. ``top`` are (token, logprob) pairs, most likely first."""

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


def sample(logits: torch.Tensor, rows: Sequence[RankSequence], masks: Masks | None = None) -> list[Draw]:
    """Sample the next token of each row from ``logits`` ``[row, vocabulary]`` (any float dtype, any device).

    ``masks`` ban tokens after all edits, and before temperature and truncation.

    The noise depends only on the seed and on the token's position, which is the number of tokens in the sequence.
    Logprobs are computed from the raw logits, before any parameter changes them.
    """
    logits = logits.to(torch.float32)
    scores = edit(logits, rows)
    if masks is not None:
        scores = masks.apply(scores, logits)
    random = [i for i, row in enumerate(rows) if row.sampling.temperature >= GREEDY_BELOW]
    if not random:
        tokens = scores.argmax(dim=-1)
    elif len(random) == len(rows):
        tokens = _draw(scores, rows)
    else:
        index = torch.tensor(random, device=logits.device)
        tokens = scores.argmax(dim=-1)
        tokens[index] = _draw(scores[index], [rows[i] for i in random])
    draws = [Draw(token) for token in tokens.tolist()]
    _add_logprobs(draws, logits, rows)
    return draws


def _draw(scores: torch.Tensor, rows: Sequence[RankSequence]) -> torch.Tensor:
    params = [row.sampling for row in rows]
    scores = scores / _column([p.temperature for p in params], scores)
    scores = truncate(scores, params)
    add_gumbel(scores, [stream_key(row.sampling.seed, len(row.tokens)) for row in rows])
    return scores.argmax(dim=-1)


def truncate(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The scores (logits over temperature), with -inf for tokens that min_p, top_k and top_p, in this order, exclude.

    Returns a copy if any score changes. Tokens exactly as likely as the last kept token are kept too, so that the
    result does not depend on the order of a sort.
    """
    vocab_size = scores.shape[1]
    if any(p.min_p > 0 for p in params):
        least = scores.amax(dim=-1, keepdim=True) + _column([p.min_p for p in params], scores).log()
        scores = scores.masked_fill(scores < least, float("-inf"))
    limits = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    cut = [i for i, p in enumerate(params) if limits[i] < vocab_size or p.top_p < 1]
    if not cut:
        return scores
    index = torch.tensor(cut, device=scores.device)
    some = scores[index]
    least = _least_kept(some, [limits[i] for i in cut], [params[i].top_p for i in cut])
    return scores.index_copy(0, index, some.masked_fill(some < least, float("-inf")))


def _least_kept(scores: torch.Tensor, limits: list[int], top_p: list[float]) -> torch.Tensor:
    """The smallest score that is kept, ``[row, 1]``."""
    width = max(limits)
    ordered = scores.topk(width, dim=-1).values if width < scores.shape[1] else scores.sort(descending=True).values
    kept = torch.arange(width, device=scores.device) < _column(limits, scores)
    masses = ordered.masked_fill(~kept, float("-inf")).softmax(dim=-1)
    # A token is kept if the probabilities of the more likely tokens add up to less than top_p. If top_p is 1, all
    # tokens are kept, however the sum is rounded. The first token is always kept, even if float32 rounds top_p to 0.
    wanted = _column([p if p < 1 else float("inf") for p in top_p], scores)
    kept &= masses.cumsum(dim=-1) - masses < wanted
    kept[:, 0] = True
    return ordered.masked_fill(~kept, float("inf")).amin(dim=-1, keepdim=True)


class RowLogprobs(NamedTuple):
    """For each row: the logprobs of all tokens, that of one token, and the most likely tokens, most likely first.

    They are from raw logits, before any parameter changes them.
    """

    all: torch.Tensor
    own: torch.Tensor
    top_values: list[list[float]]
    top_tokens: list[list[int]]


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], num_top: int) -> RowLogprobs:
    """The logprobs of float32 ``logits`` ``[row, vocabulary]``, with one of ``tokens`` for each row."""
    every = logits.log_softmax(dim=-1)
    own = every.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    best = every.topk(min(num_top, every.shape[1]), dim=-1)
    return RowLogprobs(every, own, best.values.tolist(), best.indices.tolist())


def _add_logprobs(draws: list[Draw], logits: torch.Tensor, rows: Sequence[RankSequence]) -> None:
    wanted = [(i, n) for i, row in enumerate(rows) if (n := row.sampling.num_logprobs) is not None]
    if not wanted:
        return
    some = logits[torch.tensor([i for i, _ in wanted], device=logits.device)]
    found = logprobs_of(some, [draws[i].token for i, _ in wanted], max(n for _, n in wanted))
    own = found.own[:, 0].tolist()
    for (i, n), logprob, values, tokens in zip(wanted, own, found.top_values, found.top_tokens, strict=True):
        draws[i].logprob = logprob
        draws[i].top = list(zip(tokens, values, strict=True))[:n]


def _column(numbers: list[float] | list[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device=like.device)[:, None]
