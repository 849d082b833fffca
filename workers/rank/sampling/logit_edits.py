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


def edit(logits: torch.Tensor, rows: Sequence[RankSequence]) -> torch.Tensor:
    """Apply all edits to logits ``[row, vocabulary]`` (float32); returns a copy if any edit applies."""
    edited_rows = [(index, row.edits) for index, row in enumerate(rows) if row.edits is not None]
    biased, banned = _Numbers(), _Numbers()
    for index, edits in edited_rows:
        edits.move(logits.device)
        biased.add(index, edits.biased, edits.biases)
        banned.add(index, edits.banned(), float("-inf"))
    if not (biased or banned or any(edits.changes_many for _, edits in edited_rows)):
        return logits
    edited = logits.clone()
    if biased:
        where, numbers = biased.on(logits.device)
        edited.index_put_(where, logits[where] + numbers)
    if banned:
        where, numbers = banned.on(logits.device)
        edited.index_put_(where, numbers)
    for index, edits in edited_rows:
        _apply(edited[index], edits)
    allowed = {index: edits.allowed for index, edits in edited_rows if edits.allowed is not None}
    if banned or allowed:
        for index in edited.amax(dim=-1).isneginf().nonzero()[:, 0].tolist():
            edited[index] = logits[index] + allowed[index] if index in allowed else logits[index]
    return edited


def _apply(row: torch.Tensor, edits: RowEdits) -> None:
    """Apply what concerns many tokens, in place."""
    if edits.repeated is not None:
        row.copy_(torch.where(row > 0, row / edits.repeated, row * edits.repeated))
    if edits.subtracted is not None:
        row -= edits.subtracted
    if edits.allowed is not None:
        row += edits.allowed
