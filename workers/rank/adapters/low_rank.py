"""What adapters add to the product of a linear layer: a product of two small matrices, for the tokens of their rows.

The layer's own product is computed once for all tokens, whichever adapters they are for. Then each adapter adds its
part to its own tokens, so all others keep every bit of what the layer gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from baton_serve.workers.rank import distributed
from baton_serve.workers.rank.cache.batch import AdapterRun, Batch

_ATTRIBUTE = "low_rank"


@dataclass(frozen=True)
class Factors:
    """One adapter's part of a layer: ``inputs @ down @ up``. ``down`` is ``[in, rank]``, ``up`` is ``[rank, out]``.

    ``is_partial``: the layer's inputs are split over the ranks of the engine, so ``inputs @ down`` has to be summed.
    """

    down: torch.Tensor
    up: torch.Tensor
    is_partial: bool = False


class Selection:
    """Which tokens of the forward pass under way are whose. Nothing is selected outside of its block."""

    def __init__(self) -> None:
        self.runs: tuple[AdapterRun, ...] = ()
        self.num_tokens = 0

    @contextmanager
    def running(self, batch: Batch) -> Iterator[None]:
        """Have the rows of a batch computed by their adapters inside the block."""
        self.runs, self.num_tokens = batch.adapter_runs, batch.num_tokens
        try:
            yield
        finally:
            self.runs = ()


class LowRank:
    """The parts of all adapters in one layer, or in several layers whose outputs are side by side."""

    def __init__(self, selection: Selection, factors: Mapping[int, Factors], members: Sequence[LowRank] = ()) -> None:
        """``factors``: by number of the adapter. ``members``: those that this one stands for, see ``joined``."""
        self.selection = selection
        self.factors = dict(factors)
        #: The adapters that have added something here. It shows at load whether a layer was forgotten.
        self.used: set[int] = set()
        for member in members:
            member.used = self.used

    def add(self, inputs: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """Add to ``product`` ``[..., token, out]`` what the adapters make of ``inputs`` ``[..., token, in]``, in place.

        Raises ValueError if these are not the tokens of the batch, one by one: whose they are would not be known.
        """
        if not self.selection.runs:
            return product
        rows, into = inputs.reshape(-1, inputs.shape[-1]), product.view(-1, product.shape[-1])
        if len(rows) != self.selection.num_tokens:
            raise ValueError(f"an adapted layer was given {len(rows)} of {self.selection.num_tokens} tokens")
        for adapter, tokens in self.selection.runs:
            factors = self.factors.get(adapter)
            if factors is not None:
                self.used.add(adapter)
                hidden = rows[tokens] @ factors.down
                if factors.is_partial:
                    hidden = distributed.summed(hidden)
                into[tokens].addmm_(hidden, factors.up)
        return product


def attach(layer: torch.nn.Module, part: LowRank) -> None:
    """Have a layer add the part to its product. A module that takes the layer's place has to do it itself."""
    setattr(layer, _ATTRIBUTE, part)

    def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor], product: torch.Tensor) -> torch.Tensor:
        return part.add(inputs[0], product)

    layer.register_forward_hook(hook)


def part_of(layer: torch.nn.Module) -> LowRank | None:
    """What adapters add to the layer's product."""
    part = getattr(layer, _ATTRIBUTE, None)
    return part if isinstance(part, LowRank) else None


def joined(layers: Sequence[torch.nn.Linear]) -> LowRank | None:
    """The part of layers that have the same inputs, for their outputs side by side. None: no adapter changes one.

    An adapter's ``up`` is zero where the rank of one layer meets the outputs of another: two products for all layers
    take less time than two for each.
    """
    parts = [part for layer in layers if (part := part_of(layer)) is not None]
    if not parts:
        return None
    adapters = sorted({adapter for part in parts for adapter in part.factors})
    factors = {adapter: _side_by_side(layers, adapter) for adapter in adapters}
    return LowRank(parts[0].selection, factors, parts)


def _side_by_side(layers: Sequence[torch.nn.Linear], adapter: int) -> Factors:
    found = [None if (part := part_of(layer)) is None else part.factors.get(adapter) for layer in layers]
    downs = [factors.down for factors in found if factors is not None]
    up = downs[0].new_zeros(sum(down.shape[1] for down in downs), sum(layer.out_features for layer in layers))
    rank = output = 0
    for layer, factors in zip(layers, found, strict=True):
        if factors is not None:
            up[rank : rank + len(factors.up), output : output + layer.out_features] = factors.up
            rank += len(factors.up)
        output += layer.out_features
    return Factors(torch.cat(downs, dim=1), up)
