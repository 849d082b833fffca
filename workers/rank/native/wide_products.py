"""Products of bfloat16 that are made float32, and multiplied as such; see ``processor.multiplies_pairs``.

Of few rows the time goes into reading the weights, so these become float32 in registers, for each tile anew. Of many
rows it goes into multiplying: weights become float32 once for up to ``ROWS`` rows, in a room in the nearer caches.
Inputs do for each tile, which the tiles of several blocks of outputs share. Either way an output is summed up one input
after the other.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from baton_serve.workers.rank.native.addresses import ahead, float_room_of, room_of
from baton_serve.workers.rank.native.numbers import read
from baton_serve.workers.rank.native.sums import put_block
from baton_serve.workers.rank.native.tiles import FETCH_AHEAD_BYTES, LANES, MAX_ROWS, WIDTH, widen, widen_inputs

#: Measured on Emerald Rapids: with 16 rows both ways take about as long.
FEW_ROWS = 16
#: Inputs that are multiplied at a time; of many rows so few that the weights of ``BLOCKS`` blocks for these, 384 KiB,
#: and their sums, at most 512 KiB, stay in a core's second cache. With half as many rows, or one block, products of
#: hundreds of rows take 1.05 and 1.1 times as long.
FEW_CHUNK, CHUNK = 1024, 384
BLOCKS, ROWS = 4, 512

_inputs, _weights = float_room_of(MAX_ROWS * FEW_CHUNK), float_room_of(BLOCKS * CHUNK * WIDTH)
_few_sums, _sums = float_room_of(FEW_ROWS * WIDTH), float_room_of(BLOCKS * ROWS * WIDTH)
#: Outputs of a tile that has more than are wanted.
_rest = room_of(MAX_ROWS * WIDTH)


@njit
def wide_columns(inputs, weights, bias, outputs, rows, size, num_outputs, first, end):
    """The outputs of the blocks from ``first`` to ``end``; see ``products.columns_of``."""
    if rows <= FEW_ROWS:
        _columns_of_few(inputs, weights, bias, outputs, rows, size, num_outputs, first, end)
    else:
        _columns_of_many(inputs, weights, bias, outputs, rows, size, num_outputs, first, end)


@njit
def _columns_of_few(inputs, weights, bias, outputs, rows, size, num_outputs, first, end):
    sums, rest, given = _few_sums(), _rest(outputs), _inputs()
    for block in range(first, end):
        for start in range(0, size, FEW_CHUNK):
            count = min(FEW_CHUNK, size - start)
            words = ahead(weights, (block * size + start) * WIDTH)
            for row in range(0, rows, MAX_ROWS):
                height = min(MAX_ROWS, rows - row)
                _widen_rows(ahead(inputs, row * size + start), given, height, count, size, FEW_CHUNK)
                put_block(
                    height,
                    given,
                    words,
                    bias,
                    ahead(outputs, row * num_outputs),
                    rest,
                    ahead(sums, row * WIDTH),
                    count,
                    FEW_CHUNK,
                    num_outputs,
                    block,
                    0 if row else FETCH_AHEAD_BYTES,
                    np.int64(start == 0),
                    np.int64(start + count == size),
                )


@njit
def _columns_of_many(inputs, weights, bias, outputs, rows, size, num_outputs, first, end):
    sums, rest, given, wide = _sums(), _rest(outputs), _inputs(), _weights()
    for top in range(0, rows, ROWS):
        bottom = min(rows, top + ROWS)
        for begin in range(first, end, BLOCKS):
            last = min(end, begin + BLOCKS)
            for start in range(0, size, CHUNK):
                count = min(CHUNK, size - start)
                for block in range(begin, last):
                    words = ahead(weights, (block * size + start) * WIDTH)
                    widen(words, ahead(wide, (block - begin) * CHUNK * WIDTH), count // 2)
                for row in range(top, bottom, MAX_ROWS):
                    height = min(MAX_ROWS, bottom - row)
                    _widen_rows(ahead(inputs, row * size + start), given, height, count, size, CHUNK)
                    for block in range(begin, last):
                        put_block(
                            height,
                            given,
                            ahead(wide, (block - begin) * CHUNK * WIDTH),
                            bias,
                            ahead(outputs, row * num_outputs),
                            rest,
                            ahead(sums, ((block - begin) * ROWS + row - top) * WIDTH),
                            count,
                            CHUNK,
                            num_outputs,
                            block,
                            0,
                            np.int64(start == 0),
                            np.int64(start + count == size),
                        )


@njit
def _widen_rows(inputs, given, height, count, by_input, by_given):
    """The inputs of a tile as float32."""
    whole = count // LANES * LANES
    for i in range(height):
        source, line = ahead(inputs, i * by_input), ahead(given, i * by_given)
        widen_inputs(source, line, whole)
        for j in range(whole, count):
            line[j] = read(source, j)
