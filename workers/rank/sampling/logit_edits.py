"""Changes to the logits of a few tokens: biases, bans and penalties, for all rows at once.

Order and meaning are as in vLLM: bias, then bans (until ``min_tokens``, of words, and of all tokens but the allowed
ones, which no bias lifts), then the repetition penalty (over prompt and
output), then frequency and presence penalties (over the output only, as OpenAI defines them).

Where that leaves nothing, all tokens but the allowed ones stay banned, and nothing else: the bans of words and of
``min_tokens`` give way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from baton_serve.workers.rank.row_edits import RowEdits
from baton_serve.workers.rank.sequences import RankSequence


class _Numbers:
    """A number for each of some tokens of some rows."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._tokens: list[array[int]] = []
        self._numbers: list[np.ndarray[tuple[int], np.dtype[np.float32]] | array[float]] = []

    def add(self, row: int, tokens: array[int], numbers: float | array[float]) -> None:
        if tokens:
            self._rows.append(row)
            self._tokens.append(tokens)
            self._numbers.append(np.full(len(tokens), numbers, np.float32) if isinstance(numbers, float) else numbers)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def on(self, device: torch.device) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        rows = np.repeat(self._rows, [len(tokens) for tokens in self._tokens])
        tokens, numbers = np.concatenate(self._tokens), np.concatenate(self._numbers)
        index = torch.from_numpy(np.stack([rows, tokens])).to(device)
        return (index[0], index[1]), torch.from_numpy(numbers).to(device)


class _Step(NamedTuple):
    """The edits of all rows."""

    biased: _Numbers
    banned: _Numbers
    repeated: _Numbers
    subtracted: _Numbers

    def add(self, row: int, edits: RowEdits) -> None:
        self.biased.add(row, edits.biased, edits.biases)
        self.banned.add(row, edits.banned(), float("-inf"))
        self.repeated.add(row, edits.seen, edits.repetition_penalty)
        self.subtracted.add(row, edits.counted, edits.penalties)


def edit(logits: torch.Tensor, rows: Sequence[RankSequence]) -> torch.Tensor:
    """Apply all edits to logits ``[row, vocabulary]`` (float32); returns a copy if any edit applies."""
    step = _Step(_Numbers(), _Numbers(), _Numbers(), _Numbers())
    kept = {}
    for index, row in enumerate(rows):
        if row.edits is not None:
            step.add(index, row.edits)
            if row.edits.allowed is not None:
                row.edits.allowed = kept[index] = row.edits.allowed.to(logits.device)
    if not any(step) and not kept:
        return logits
    edited = _apply(logits.clone(), step)
    for index, allowed in kept.items():
        edited[index] += allowed
    if step.banned or kept:
        for index in edited.amax(dim=-1).isneginf().nonzero()[:, 0].tolist():
            edited[index] = logits[index] + kept[index] if index in kept else logits[index]
    return edited


def _apply(logits: torch.Tensor, step: _Step) -> torch.Tensor:
    if step.biased:
        where, numbers = step.biased.on(logits.device)
        logits.index_put_(where, logits[where] + numbers)
    if step.banned:
        where, numbers = step.banned.on(logits.device)
        logits.index_put_(where, numbers)
    if step.repeated:
        where, factors = step.repeated.on(logits.device)
        now = logits[where]
        logits.index_put_(where, torch.where(now > 0, now / factors, now * factors))
    if step.subtracted:
        where, numbers = step.subtracted.on(logits.device)
        logits.index_put_(where, logits[where] - numbers)
    return logits
