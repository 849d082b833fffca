"""The two small matrices of an adapter for one layer, or for several whose outputs are side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Factors:
    """One adapter's part of a layer: ``inputs @ down @ up``. ``down`` is ``[in, rank]``, ``up`` is ``[rank, out]``.

    ``is_partial``: the layer's inputs are split over the ranks of the engine, so ``inputs @ down`` has to be summed.
    """

    down: torch.Tensor
    up: torch.Tensor
    is_partial: bool = False
