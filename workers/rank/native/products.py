"""Products of tokens and the weights of a layer.

Each output is summed up one input after the other, in a register, however many tokens there are, and whichever thread
computes it. So a token has the same product among any others, bit for bit.

Where bfloat16 are not multiplied two at a time (``processor.multiplies_pairs``), ``wide_products`` has how it is done.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit, types
from numba.extending import overload

from baton_serve.workers.rank.native.addresses import ahead, float_room_of, room_of
from baton_serve.workers.rank.native.compiled import compiled
from baton_serve.workers.rank.native.numbers import ELEMENTS, together
from baton_serve.workers.rank.native.processor import multiplies_pairs
from baton_serve.workers.rank.native.sums import put_block
from baton_serve.workers.rank.native.team import as_team, team_for
from baton_serve.workers.rank.native.tiles import FETCH_AHEAD_BYTES, MAX_ROWS, WIDTH
from baton_serve.workers.rank.native.wide_products import wide_columns

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
    return compiled(_product, "elements elements elements elements int int int int", ELEMENTS[dtype])


def _product(inputs, weights, bias, outputs, rows, size, num_outputs, threads):
    team = team_for(threads, rows * size * num_outputs, LEAST_FOR_TWO)
    as_team(_share, team, (inputs, weights, bias, outputs, rows, size, num_outputs))


def columns_of(inputs, weights, bias, outputs, rows, size, num_outputs, first, end):
    """The outputs of the blocks from ``first`` to ``end``, in the way for inputs of this type."""
    raise NotImplementedError("programs only")


@njit
def _share(place, threads, inputs, weights, bias, outputs, rows, size, num_outputs):
    """What one thread computes."""
    blocks = (num_outputs + WIDTH - 1) // WIDTH
    first, end = blocks * place // threads, blocks * (place + 1) // threads
    columns_of(inputs, weights, bias, outputs, rows, size, num_outputs, first, end)


#: Sums of a block's outputs, if its weights come in chunks; and outputs of a tile that has more than are wanted.
_sums, _rest = float_room_of(ROWS * WIDTH), room_of(MAX_ROWS * WIDTH)


@njit
def _columns(inputs, weights, bias, outputs, rows, size, num_outputs, first, end):
    sums, rest, chunk = _sums(), _rest(outputs), CHUNK_WORDS * together(inputs)
    for top in range(0, rows, ROWS):
        bottom = min(rows, top + ROWS)
        for block in range(first, end):
            for start in range(0, size, chunk):
                count = min(chunk, size - start)
                columns = ahead(weights, (block * size + start) * WIDTH)
                for row in range(top, bottom, MAX_ROWS):
                    put_block(
                        min(MAX_ROWS, bottom - row),
                        ahead(inputs, row * size + start),
                        columns,
                        bias,
                        ahead(outputs, row * num_outputs),
                        rest,
                        ahead(sums, (row - top) * WIDTH),
                        count,
                        size,
                        num_outputs,
                        block,
                        FETCH_AHEAD_BYTES if row == top else 0,
                        np.int64(start == 0),
                        np.int64(start + count == size),
                    )


@overload(columns_of)
def _columns_of(inputs, weights, bias, outputs, rows, size, num_outputs, first, end):
    columns = wide_columns if inputs.dtype == types.uint16 and not multiplies_pairs() else _columns
    return lambda inputs, weights, bias, outputs, rows, size, num_outputs, first, end: columns(
        inputs, weights, bias, outputs, rows, size, num_outputs, first, end
    )
