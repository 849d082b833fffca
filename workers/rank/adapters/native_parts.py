"""What adapters add to the product of a layer, by the program of ``native/low_rank``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from workers.rank.native.low_rank import HEAD, MAX_HIDDEN, PIECE, adapt
from workers.rank.native.sums import width_of
from workers.rank.native.support import has_tiles
from workers.rank.native.tiles import LANES
from workers.rank.native.weights import laid_out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.rank.adapters.factors import Factors


class NativeParts:
    """Adds the parts of adapters to the products of a layer, by the threads that torch has."""

    def __init__(self, factors: Mapping[int, Factors]) -> None:
        """``factors``: by number of the adapter, see ``takes``. They are not kept."""
        one = next(iter(factors.values()))
        self.in_features, self.out_features = one.down.shape[0], one.up.shape[1]
        self._dtype = one.down.dtype
        self._laid: list[torch.Tensor] = []
        most = max(len(factors_.pieces) for factors_ in factors.values())
        self._table = torch.zeros((max(factors) + 1, HEAD + PIECE * most), dtype=torch.int64)
        self._hidden = 0
        for number, each in factors.items():
            line = self._line(each)
            self._table[number, : len(line)] = torch.tensor(line)
            self._hidden = max(self._hidden, line[1])
        self._program = adapt(self._dtype)

    def add(self, inputs: torch.Tensor, product: torch.Tensor, adapters: torch.Tensor) -> None:
        """Add to ``product`` ``[token, out]`` what the adapters make of ``inputs`` ``[token, in]``, in place.

        ``adapters``: the number of each token's adapter, int64; a negative one for none.
        """
        assert inputs.is_contiguous() and product.is_contiguous() and inputs.dtype == product.dtype == self._dtype
        self._program(
            inputs.data_ptr(),
            product.data_ptr(),
            adapters.data_ptr(),
            self._table.data_ptr(),
            len(self._table),
            self._table.shape[1],
            len(inputs),
            self.in_features,
            self.out_features,
            self._hidden,
            torch.get_num_threads(),
        )

    def _line(self, factors: Factors) -> list[int]:
        """Lay an adapter's matrices out. Each piece's numbers of ``hidden`` are filled up to whole vectors."""
        pieces, downs, hidden = list[int](), list[torch.Tensor](), 0
        for piece in factors.pieces:
            rank = -(-piece.rank // LANES) * LANES
            down = factors.down.new_zeros(self.in_features, rank)
            down[:, : piece.rank] = factors.down[:, piece.first_hidden : piece.first_hidden + piece.rank]
            downs.append(down)
            up = factors.up.new_zeros(piece.outputs, rank)
            mine = slice(piece.first_hidden, piece.first_hidden + piece.rank)
            up[:, : piece.rank] = factors.up[mine, piece.first_output : piece.first_output + piece.outputs].T
            pieces += [self._keep(laid_out(up)), piece.first_output, piece.outputs, hidden, rank]
            hidden += rank
        whole = torch.cat(downs, dim=1)
        columns = [laid_out(whole[:, first : first + width].T, width).flatten() for first, width in _columns(hidden)]
        return [self._keep(torch.cat(columns)), hidden, len(factors.pieces), *pieces]

    def _keep(self, laid: torch.Tensor) -> int:
        self._laid.append(laid)
        return laid.data_ptr()


def takes(factors: Mapping[int, Factors]) -> bool:
    """Whether there are programs for these adapters of a layer on this processor."""
    return all(
        has_tiles(each.down.dtype)
        and each.down.device.type == "cpu"
        and each.down.shape[0] % 2 == 0
        and not each.is_partial
        and sum(-(-piece.rank // LANES) * LANES for piece in each.pieces) <= MAX_HIDDEN
        for each in factors.values()
    )


def _columns(hidden: int) -> list[tuple[int, int]]:
    """The first of the columns that are summed up together, and how many they are."""
    found, first = list[tuple[int, int]](), 0
    while first < hidden:
        found.append((first, width_of(hidden - first)))
        first += found[-1][1]
    return found
