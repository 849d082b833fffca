"""Bans the tokens that the grammars of a step's rows do not let come next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.rank.grammar.constraint import Constraint


class ConstrainedRow(Protocol):
    """What masks need of a sequence."""

    @property
    def constraint(self) -> Constraint | None: ...


class Masks:
    """The masks of one step, as bits, and the rows that have one."""

    def __init__(self, rows: Sequence[int], words: torch.Tensor) -> None:
        self._rows = list(rows)
        self._words = words

    @classmethod
    def of(cls, rows: Sequence[ConstrainedRow], mask_words: int) -> Masks | None:
        """The masks of a step's rows; None if no row has a grammar. Call it while the forward pass runs on its device.

        ``mask_words`` is the number of 32-bit words for the whole vocabulary.
        """
        bound = [(index, row.constraint) for index, row in enumerate(rows) if row.constraint is not None]
        if not bound:
            return None
        words = torch.empty((len(bound), mask_words), dtype=torch.int32)
        for mask, (_, constraint) in zip(words, bound, strict=True):
            constraint.write_mask(mask)
        return cls([index for index, _ in bound], words)

    def apply(self, scores: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """A copy of the scores ``[row, vocabulary]`` with -inf for banned tokens.

        Where parameters of the request have banned all tokens that the grammar lets come next (``min_tokens`` bans the
        end of an answer that can only end, say), the grammar wins: the row gets its ``logits``.
        """
        banned = self._banned(scores)
        if len(self._rows) == scores.shape[0]:
            return _masked(scores, logits, banned)
        index = torch.tensor(self._rows, device=scores.device)
        some = scores[index]
        return scores.index_copy(0, index, _masked(some, some if scores is logits else logits[index], banned))

    def _banned(self, scores: torch.Tensor) -> torch.Tensor:
        bits = self._words.view(torch.uint8).to(scores.device)
        weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=scores.device)
        return ((bits[:, :, None] & weights) == 0).flatten(1)[:, : scores.shape[1]]


def _masked(scores: torch.Tensor, logits: torch.Tensor, banned: torch.Tensor) -> torch.Tensor:
    masked = scores.masked_fill(banned, float("-inf"))
    if scores is logits:  # no parameter has banned anything
        return masked
    is_empty = masked.isneginf().all(dim=-1, keepdim=True)
    return torch.where(is_empty, logits.masked_fill(banned, float("-inf")), masked)
