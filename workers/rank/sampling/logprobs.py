"""Logprobs from raw logits, before any parameter of sampling changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class RowLogprobs(NamedTuple):
    """For each row: the logprobs of all tokens, that of one token, and the most likely tokens, most likely first."""

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
