"""The two small matrices of an adapter for one layer, or for several whose outputs are side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Piece(NamedTuple):
    """Outputs of a layer among those of several, and the numbers of ``inputs @ down`` that they are made of."""

    first_hidden: int
    rank: int
    first_output: int
    outputs: int


@dataclass(frozen=True)
class Factors:
    """One adapter's part of a layer: ``inputs @ down @ up``. ``down`` is ``[in, rank]``, ``up`` is ``[rank, out]``.

    ``is_partial``: the layer's inputs are split over the ranks of the engine, so ``inputs @ down`` has to be summed.
    ``joined``: where ``up`` is not zero, if it is that of several layers.
    """

    down: torch.Tensor
    up: torch.Tensor
    is_partial: bool = False
    joined: tuple[Piece, ...] = ()

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Where ``up`` is not zero."""
        return self.joined or (Piece(0, self.up.shape[0], 0, self.up.shape[1]),)
