"""What adapters add to the products of tokens, each of which may have another adapter.

An adapter's first matrix gives a few numbers of each token, ``hidden``. They are rounded to the type of the tokens, and
multiplied by pieces, one for each layer whose outputs are side by side in the product. A piece is added to the product,
which is rounded once more. Additions are in the order of ``tiles``: a token has the same bits among any others.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from baton_serve.workers.rank.native.addresses import address_at, ahead, float_room_of, room_of
from baton_serve.workers.rank.native.compiled import as_written, compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS, read, write
from baton_serve.workers.rank.native.sums import add, width_of
from baton_serve.workers.rank.native.team import as_team, team_for
from baton_serve.workers.rank.native.tiles import WIDTH

#: The most numbers of ``hidden``, as those of a tile's tokens lie on the stack of a thread. An adapter that has more is
#: computed as several groups of pieces, one after the other.
MAX_HIDDEN = 1024
#: With fewer products of numbers than these, one thread is done before a second one has begun.
LEAST_FOR_TWO = 1 << 18
#: Tokens of a tile; those that are left are computed one by one.
_ROWS = 4
#: An adapter's line of the table: how many groups there are, then the groups. A group has so many fields: the address
#: of its first matrix, how many numbers ``hidden`` has, how many pieces there are. Then so many for each piece: its
#: address, the first output and how many, the first number of ``hidden`` and how many.
FIELDS, PIECE_FIELDS = 3, 5


@lru_cache(maxsize=4)
def adapt(dtype):
    """``f(inputs, product, adapters, table, num_adapters, length, rows, num_inputs, num_outputs, most_hidden,
    threads)``: adds to ``product`` ``[row, num_outputs]`` what is made of ``inputs`` ``[row, num_inputs]``.

    ``adapters`` has a number for each row; one without a line in ``table``, ``[num_adapters, length]``, adds nothing.
    No adapter's groups have more numbers in ``hidden`` than ``most_hidden`` together.
    """
    return compiled(_adapt, "elements elements indices indices" + 7 * " int", ELEMENTS[dtype])


def _adapt(inputs, product, adapters, table, num_adapters, length, rows, num_inputs, num_outputs, most_hidden, threads):
    team = team_for(threads, rows * (num_inputs + num_outputs) * most_hidden, LEAST_FOR_TWO)
    as_team(_share, team, (inputs, product, adapters, table, num_adapters, length, rows, num_inputs, num_outputs))


_hidden_sums, _hidden = float_room_of(_ROWS * MAX_HIDDEN), room_of(_ROWS * MAX_HIDDEN)
_output_sums = float_room_of(_ROWS * WIDTH)


@as_written
def _share(place, threads, inputs, product, adapters, table, num_adapters, length, rows, num_inputs, num_outputs):
    """What one thread adds."""
    sums, hidden, outputs = _hidden_sums(), _hidden(inputs), _output_sums()
    row, end = rows * place // threads, rows * (place + 1) // threads
    while row < end:
        adapter, height = adapters[row], 1
        while height < _ROWS and row + height < end and adapters[row + height] == adapter:
            height += 1
        height = _ROWS if height == _ROWS else 1
        if 0 <= adapter < num_adapters:
            line, given, into = adapter * length, ahead(inputs, row * num_inputs), ahead(product, row * num_outputs)
            group = ahead(table, line + 1)
            for _ in range(table[line]):
                num_hidden, num_pieces = group[1], group[2]
                _reduce(given, hidden, sums, address_at(inputs, group[0]), height, num_inputs, num_hidden)
                group = ahead(group, FIELDS)
                for _ in range(num_pieces):
                    _extend(hidden, into, outputs, group, height, num_hidden, num_outputs)
                    group = ahead(group, PIECE_FIELDS)
        row += height


@as_written
def _reduce(inputs, hidden, sums, down, height, num_inputs, num_hidden):
    """The first product, of some tokens: ``hidden`` is ``[token, num_hidden]``."""
    column = 0
    while column < num_hidden:
        width = width_of(num_hidden - column)
        columns, total = ahead(down, column * num_inputs), ahead(sums, column)
        add(height, width, inputs, columns, total, num_inputs, num_inputs, num_hidden, np.int64(1))
        column += width
    for i in range(height * num_hidden):
        write(hidden, i, sums[i])


@as_written
def _extend(hidden, product, sums, piece, height, num_hidden, num_outputs):
    """Add a piece to the product."""
    up, first, outputs, start, rank = address_at(hidden, piece[0]), piece[1], piece[2], piece[3], piece[4]
    for column in range(0, outputs, WIDTH):
        width = min(WIDTH, outputs - column)
        for i in range(height):
            for j in range(width):
                sums[i * WIDTH + j] = read(product, i * num_outputs + first + column + j)
        add(height, WIDTH, ahead(hidden, start), ahead(up, column * rank), sums, rank, num_hidden, WIDTH, np.int64(0))
        for i in range(height):
            for j in range(width):
                write(product, i * num_outputs + first + column + j, sums[i * WIDTH + j])
