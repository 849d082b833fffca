"""What adapters add to the product of a layer, by the program of ``native/low_rank``."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import torch

from baton_serve.workers.rank.adapters.factors import Piece
from baton_serve.workers.rank.native import weights
from baton_serve.workers.rank.native.low_rank import MAX_HIDDEN, adapt
from baton_serve.workers.rank.native.sums import width_of
from baton_serve.workers.rank.native.tiles import LANES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton_serve.workers.rank.adapters.factors import Factors

logger = logging.getLogger(__name__)


class NativeParts:
    """Adds the parts of adapters to the products of a layer, by the threads that torch has."""

    def __init__(self, factors: Mapping[int, Factors]) -> None:
        """``factors``: by number of the adapter, see ``takes``. They are not kept."""
        one = next(iter(factors.values()))
        self.in_features, self.out_features = one.down.shape[0], one.up.shape[1]
        self._dtype = one.down.dtype
        self._laid: list[torch.Tensor] = []
        groups = {number: groups_of(each.pieces) for number, each in factors.items()}
        lines = {number: self._line(each, groups[number]) for number, each in factors.items()}
        self._table = torch.zeros((max(factors) + 1, max(map(len, lines.values()))), dtype=torch.int64)
        for number, line in lines.items():
            self._table[number, : len(line)] = torch.tensor(line)
        self._most_hidden = max(
            sum(padded(piece.rank) for group in each for piece in group) for each in groups.values()
        )
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
            self._most_hidden,
            torch.get_num_threads(),
        )

    def _line(self, factors: Factors, groups: list[list[Piece]]) -> list[int]:
        """Lay an adapter's matrices out. Each piece's numbers of ``hidden`` are filled up to whole vectors."""
        return [len(groups), *(field for group in groups for field in self._group(factors, group))]

    def _group(self, factors: Factors, group: list[Piece]) -> list[int]:
        pieces, downs, num_hidden = list[int](), list[torch.Tensor](), 0
        for piece in group:
            rank = padded(piece.rank)
            mine = slice(piece.first_hidden, piece.first_hidden + piece.rank)
            down, up = factors.down.new_zeros(self.in_features, rank), factors.up.new_zeros(piece.outputs, rank)
            down[:, : piece.rank] = factors.down[:, mine]
            up[:, : piece.rank] = factors.up[mine, piece.first_output : piece.first_output + piece.outputs].T
            downs.append(down)
            pieces += [self._keep(weights.laid_out(up)), piece.first_output, piece.outputs, num_hidden, rank]
            num_hidden += rank
        whole = torch.cat(downs, dim=1)
        columns = [
            weights.laid_out(whole[:, first : first + width].T, width).flatten()
            for first, width in _columns(num_hidden)
        ]
        return [self._keep(torch.cat(columns)), num_hidden, len(group), *pieces]

    def _keep(self, laid: torch.Tensor) -> int:
        self._laid.append(laid)
        return laid.data_ptr()


def takes(factors: Mapping[int, Factors]) -> bool:
    """Whether there are programs for these adapters of a layer on this processor."""
    dtypes = {each.down.dtype for each in factors.values()}
    return len(dtypes) == 1 and all(_takes(each) for each in factors.values()) and _compiles(*dtypes)


def _takes(factors: Factors) -> bool:
    is_here = factors.down.device.type == "cpu" and not factors.is_partial
    return is_here and weights.takes(factors.down.dtype, factors.down.shape[0])


def padded(rank: int) -> int:
    """Numbers of ``hidden`` that a piece takes."""
    return -(-rank // LANES) * LANES


def groups_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in groups of at most ``MAX_HIDDEN`` numbers of ``hidden``. A piece that has more becomes several."""
    groups, room = list[list[Piece]](), 0
    for piece in pieces:
        for start in range(0, piece.rank, MAX_HIDDEN):
            part = piece._replace(first_hidden=piece.first_hidden + start, rank=min(MAX_HIDDEN, piece.rank - start))
            if padded(part.rank) > room:
                groups.append([])
                room = MAX_HIDDEN
            groups[-1].append(part)
            room -= padded(part.rank)
    return groups


@cache
def _compiles(dtype: torch.dtype) -> bool:
    try:
        adapt(dtype)
    # A compiler that does not know an instruction may raise anything.
    except Exception as error:  # noqa: BLE001
        logger.warning("torch computes adapters, as Numba does not compile their program (%s)", type(error).__name__)
        return False
    return True


def _columns(num_hidden: int) -> list[tuple[int, int]]:
    """The first of the columns that are summed up together, and how many they are."""
    found, first = list[tuple[int, int]](), 0
    while first < num_hidden:
        found.append((first, width_of(num_hidden - first)))
        first += found[-1][1]
    return found
