"""What adapters add to the product of a linear layer: a product of two small matrices, for the tokens of their rows.

The layer's own product is computed once for all tokens, whichever adapters they are for. Then each adapter adds its
part to its own tokens, so all others keep every bit of what the layer gave.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from baton_serve.workers.rank import distributed
from baton_serve.workers.rank.adapters.factors import Factors, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from baton_serve.workers.rank.adapters.native_parts import NativeParts
    from baton_serve.workers.rank.cache.batch import AdapterRun, Batch

_ATTRIBUTE = "low_rank"


class Selection:
    """Which tokens of the forward pass under way are whose. Nothing is selected outside of its blocks."""

    def __init__(self) -> None:
        #: The same as ``numbers``; none if numbers alone say it.
        self.runs: tuple[AdapterRun, ...] = ()
        #: The number of each token's adapter, int64 on the host; None if no token has one.
        self.numbers: torch.Tensor | None = None

    @contextmanager
    def running(self, batch: Batch) -> Iterator[None]:
        """Have the rows of a batch computed by their adapters inside the block."""
        if not batch.adapter_runs:
            yield
            return
        self.runs, self.numbers = batch.adapter_runs, batch.adapter_numbers()
        try:
            yield
        finally:
            self.runs, self.numbers = (), None

    @contextmanager
    def numbered(self, numbers: torch.Tensor) -> Iterator[None]:
        """The same, with numbers that may be others when the pass is repeated. All layers need a program for it."""
        self.numbers = numbers
        try:
            yield
        finally:
            self.numbers = None


class LowRank:
    """The parts of all adapters in one layer, or in several layers whose outputs are side by side."""

    def __init__(self, selection: Selection, factors: Mapping[int, Factors], members: Sequence[LowRank] = ()) -> None:
        """``factors``: by number of the adapter. ``members``: those that this one stands for, see ``joined``."""
        self.selection = selection
        self.factors = dict(factors)
        #: The adapters that have added something here. It shows at load whether a layer was forgotten.
        self.used: set[int] = set()
        self._joined: LowRank | None = None
        for member in members:
            member.used, member._joined = self.used, self
        self._stands_for = tuple(members)
        self._numbers = frozenset[int]()
        self._program: NativeParts | None = None

    @property
    def has_program(self) -> bool:
        """Whether a native program computes it, which needs no more than ``Selection.numbers``."""
        return self._program is not None if self._joined is None else self._joined.has_program

    def lay_out(self) -> None:
        """Have a native program compute it, if there is one for it. All adapters are there by then."""
        from baton_serve.workers.rank.adapters.native_parts import NativeParts, takes  # brings Numba

        if self._program is None and takes(self.factors):
            self._program, self._numbers = NativeParts(self.factors), frozenset(self.factors)
            if self._stands_for:
                # The members have the matrices as well, without the zeros.
                self.factors = {}

    def add(self, inputs: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """Add to ``product`` ``[..., token, out]`` what the adapters make of ``inputs`` ``[..., token, in]``, in place.

        Raises ValueError if these are not the tokens of the batch, one by one: whose they are would not be known; and
        RuntimeError if only numbers say whose they are, and there is no program that reads them.
        """
        numbers = self.selection.numbers
        if numbers is None:
            return product
        rows, into = inputs.reshape(-1, inputs.shape[-1]), product.view(-1, product.shape[-1])
        if len(rows) != len(numbers):
            raise ValueError(f"an adapted layer was given {len(rows)} of {len(numbers)} tokens")
        if self._program is not None:
            self._program.add(rows.contiguous(), into, numbers)
            self.used.update(run.adapter for run in self.selection.runs if run.adapter in self._numbers)
            return product
        if not self.selection.runs:
            raise RuntimeError("no program computes an adapted layer")
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
    pieces = list[Piece]()
    downs = [factors.down for factors in found if factors is not None]
    up = downs[0].new_zeros(sum(down.shape[1] for down in downs), sum(layer.out_features for layer in layers))
    rank = output = 0
    for layer, factors in zip(layers, found, strict=True):
        if factors is not None:
            up[rank : rank + len(factors.up), output : output + layer.out_features] = factors.up
            pieces.append(Piece(rank, len(factors.up), output, layer.out_features))
            rank += len(factors.up)
        output += layer.out_features
    return Factors(torch.cat(downs, dim=1), up, joined=tuple(pieces))
