"""What adapters add to the products of tokens, each of which may have another adapter.

An adapter's first matrix gives a few numbers of each token, ``hidden``. They are rounded to the type of the tokens, and
multiplied by pieces, one for each layer whose outputs are side by side in the product. A piece is added to the product,
which is rounded once more. Additions are in the order of ``tiles``: a token has the same bits among any others.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workers.rank.native.addresses import address_at, ahead, float_room_of, room_of
from workers.rank.native.compiled import compiled, part
from workers.rank.native.numbers import ELEMENTS, read, write
from workers.rank.native.sums import add, width_of
from workers.rank.native.team import as_team, team_for
from workers.rank.native.tiles import WIDTH

#: The most numbers of ``hidden``: those of a tile's tokens lie on the stack of a thread.
MAX_HIDDEN = 1024
#: Fewer additions of products than these a thread has computed before another one has begun.
LEAST_FOR_TWO = 1 << 18
#: Tokens of a tile; those that are left are computed one by one.
_ROWS = 4
#: An adapter's line of the table: the address of its first matrix, the numbers of ``hidden``, and its pieces; then of
#: each piece the address, the first output and how many there are, and the first number of ``hidden`` and how many.
HEAD, PIECE = 3, 5


@lru_cache(maxsize=4)
def adapt(dtype):
    """``f(inputs, product, adapters, table, num_adapters, line, rows, inputs, outputs, most_hidden, threads)``.

    Adds to ``product`` ``[row, outputs]``. ``adapters`` has a number for each row; one that is not in ``table``,
    ``[num_adapters, line]``, adds nothing. ``most_hidden`` tells how much work there is.
    """
    return compiled(_adapt, "elements elements indices indices" + 7 * " int", ELEMENTS[dtype])


def _adapt(inputs, product, adapters, table, num_adapters, line, rows, size, num_outputs, most_hidden, threads):
    team = team_for(threads, rows * (size + num_outputs) * most_hidden, LEAST_FOR_TWO)
    as_team(_share, team, (inputs, product, adapters, table, num_adapters, line, rows, size, num_outputs))


_hidden_sums, _hidden = float_room_of(_ROWS * MAX_HIDDEN), room_of(_ROWS * MAX_HIDDEN)
_output_sums = float_room_of(_ROWS * WIDTH)


@part
def _share(place, threads, inputs, product, adapters, table, num_adapters, line, rows, size, num_outputs):
    """What one thread adds."""
    sums, hidden, outputs = _hidden_sums(), _hidden(inputs), _output_sums()
    row, end = rows * place // threads, rows * (place + 1) // threads
    while row < end:
        adapter, height = adapters[row], 1
        while height < _ROWS and row + height < end and adapters[row + height] == adapter:
            height += 1
        height = _ROWS if height == _ROWS else 1
        if 0 <= adapter < num_adapters and table[adapter * line] != 0:
            given, into, entry = (
                ahead(inputs, row * size),
                ahead(product, row * num_outputs),
                ahead(table, adapter * line),
            )
            _reduce(given, hidden, sums, address_at(inputs, entry[0]), height, size, entry[1])
            for piece in range(entry[2]):
                _extend(hidden, into, outputs, ahead(entry, HEAD + PIECE * piece), height, entry[1], num_outputs)
        row += height


@part
def _reduce(inputs, hidden, sums, down, height, size, width):
    """The numbers of some tokens: ``hidden`` is ``[token, width]``."""
    column = 0
    while column < width:
        wide = width_of(width - column)
        add(height, wide, inputs, ahead(down, column * size), ahead(sums, column), size, size, width, np.int64(1))
        column += wide
    for i in range(height * width):
        write(hidden, i, sums[i])


@part
def _extend(hidden, product, sums, piece, height, width, num_outputs):
    """Add a piece to the product."""
    up, first, outputs, start, rank = address_at(hidden, piece[0]), piece[1], piece[2], piece[3], piece[4]
    for column in range(0, outputs, WIDTH):
        wide = min(WIDTH, outputs - column)
        for i in range(height):
            for j in range(wide):
                sums[i * WIDTH + j] = read(product, i * num_outputs + first + column + j)
        add(height, WIDTH, ahead(hidden, start), ahead(up, column * rank), sums, rank, width, WIDTH, np.int64(0))
        for i in range(height):
            for j in range(wide):
                write(product, i * num_outputs + first + column + j, sums[i * WIDTH + j])
