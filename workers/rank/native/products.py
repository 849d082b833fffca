"""Products of tokens and the weights of a layer.

Each output is summed up one input after the other, in a register, however many tokens there are, and whichever thread
computes it. So a token has the same product among any others, bit for bit.

Where bfloat16 are not multiplied two at a time (``support.multiplies_pairs``), ``wide_products`` has how it is done.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numba import njit

from workers.rank.native.addresses import ahead, float_room_of, room_of
from workers.rank.native.compiled import compiled
from workers.rank.native.numbers import ELEMENTS, together
from workers.rank.native.sums import multiply, put_some
from workers.rank.native.support import multiplies_pairs
from workers.rank.native.team import as_team, team_for
from workers.rank.native.tiles import MAX_ROWS, SOON, WIDTH
from workers.rank.native.wide_products import wide_columns

#: Inputs after which a block's weights are too many to stay in the nearer caches (1 MiB) while all rows take their
#: turn: these times as many as are multiplied at a time.
CHUNK_WORDS = 2048
#: Rows that are computed before the next block of weights is read. Their sums lie on the stack of a thread.
ROWS = 512
#: Fewer products than these a thread has computed before another one has begun.
LEAST_FOR_TWO = 1 << 18


@lru_cache(maxsize=4)
def product(dtype):
    """``f(inputs, weights, bias, outputs, rows, inputs, outputs, threads)``: outputs ``[row, output]``.

    ``weights`` are those of ``weights.laid_out``; ``bias`` has a number for each output, and is filled up as they are.
    ``threads`` are those of torch.
    """
    is_wide = dtype == torch.bfloat16 and not multiplies_pairs()
    program = _wide_product if is_wide else _product
    return compiled(program, "elements elements elements elements int int int int", ELEMENTS[dtype])


def _product(inputs, weights, bias, outputs, rows, size, num_outputs, threads):
    team = team_for(threads, rows * size * num_outputs, LEAST_FOR_TWO)
    as_team(_share, team, (inputs, weights, bias, outputs, rows, size, num_outputs))


def _wide_product(inputs, weights, bias, outputs, rows, size, num_outputs, threads):
    team = team_for(threads, rows * size * num_outputs, LEAST_FOR_TWO)
    as_team(_wide_share, team, (inputs, weights, bias, outputs, rows, size, num_outputs))


@njit
def _share(place, threads, inputs, weights, bias, outputs, rows, size, num_outputs):
    """What one thread computes."""
    blocks = (num_outputs + WIDTH - 1) // WIDTH
    first, end = blocks * place // threads, blocks * (place + 1) // threads
    _columns(inputs, weights, bias, outputs, rows, size, num_outputs, first, end)


@njit
def _wide_share(place, threads, inputs, weights, bias, outputs, rows, size, num_outputs):
    """The same for numbers that are made float32."""
    blocks = (num_outputs + WIDTH - 1) // WIDTH
    first, end = blocks * place // threads, blocks * (place + 1) // threads
    wide_columns(inputs, weights, bias, outputs, rows, size, num_outputs, first, end)


#: Sums of a block's outputs, if its weights come in chunks; and outputs of a tile that has more than are wanted.
_sums, _rest = float_room_of(ROWS * WIDTH), room_of(MAX_ROWS * WIDTH)


@njit
def _columns(inputs, weights, bias, outputs, rows, size, num_outputs, first, end):
    """The outputs of the blocks from ``first`` to ``end``."""
    sums, rest, chunk = _sums(), _rest(outputs), CHUNK_WORDS * together(inputs)
    for top in range(0, rows, ROWS):
        bottom = min(rows, top + ROWS)
        for block in range(first, end):
            column = block * WIDTH
            width = min(WIDTH, num_outputs - column)
            for start in range(0, size, chunk):
                count = min(chunk, size - start)
                is_first, is_last = np.int64(start == 0), np.int64(start + count == size)
                columns, offsets = ahead(weights, (block * size + start) * WIDTH), ahead(bias, column)
                for row in range(top, bottom, MAX_ROWS):
                    height, soon = min(MAX_ROWS, bottom - row), SOON if row == top else 0
                    given, total = ahead(inputs, row * size + start), ahead(sums, (row - top) * WIDTH)
                    target, distance = rest, WIDTH
                    if width == WIDTH:
                        target, distance = ahead(outputs, row * num_outputs + column), num_outputs
                    multiply(
                        height, given, columns, offsets, target, total, count, size, distance, soon, is_first, is_last
                    )
                    if width < WIDTH and is_last:
                        put_some(rest, ahead(outputs, row * num_outputs + column), height, width, num_outputs)
