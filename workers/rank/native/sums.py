"""Sums and products of tiles, and how many rows one has."""

from __future__ import annotations

from numba import njit
from numba.extending import register_jitable

from baton_serve.workers.rank.native.addresses import ahead
from baton_serve.workers.rank.native.tiles import LANES, MAX_ROWS, WIDTH, sums_of, tile_of

#: Tiles of rows and vectors. A few sizes, as each takes a tenth of a second to compile; but 8 rows of two vectors, as
#: additions to fewer sums wait for each other.
_sums1x1, _sums4x1 = sums_of(1, 1), sums_of(4, 1)
_sums1x2, _sums4x2, _sums8x2 = sums_of(1, 2), sums_of(4, 2), sums_of(8, 2)
_sums1x4, _sums2x4, _sums4x4 = sums_of(1, 4), sums_of(2, 4), sums_of(4, 4)


@register_jitable
def width_of(left):
    """The columns of a tile, of so many that are left, a multiple of ``LANES``."""
    if left >= WIDTH:
        return WIDTH
    return 2 * LANES if left >= 2 * LANES else LANES


@njit
def height_of(left, width):
    """The rows of a tile of this width, of so many that are left."""
    if left >= 8 and width == 2 * LANES:
        return 8
    if left >= 4:
        return 4
    return 2 if left >= 2 and width == WIDTH else 1


@njit
def add(height, width, inputs, columns, sums, size, by_input, by_sum, is_first):
    """Sums of this height and width; see ``sums_of``."""
    if width == WIDTH:
        if height == 4:
            _sums4x4(inputs, columns, sums, size, by_input, by_sum, is_first)
        elif height == 2:
            _sums2x4(inputs, columns, sums, size, by_input, by_sum, is_first)
        else:
            _sums1x4(inputs, columns, sums, size, by_input, by_sum, is_first)
    elif width == 2 * LANES:
        if height == 8:
            _sums8x2(inputs, columns, sums, size, by_input, by_sum, is_first)
        elif height == 4:
            _sums4x2(inputs, columns, sums, size, by_input, by_sum, is_first)
        else:
            _sums1x2(inputs, columns, sums, size, by_input, by_sum, is_first)
    elif height == 4:
        _sums4x1(inputs, columns, sums, size, by_input, by_sum, is_first)
    else:
        _sums1x1(inputs, columns, sums, size, by_input, by_sum, is_first)


_tile1, _tile2, _tile3, _tile4 = (tile_of(rows, WIDTH // LANES) for rows in range(1, MAX_ROWS + 1))


@njit
def put_block(
    height,
    inputs,
    columns,
    bias,
    outputs,
    rest,
    sums,
    size,
    by_input,
    num_outputs,
    block,
    ahead_bytes,
    is_first,
    is_last,
):
    """A tile of 1 to ``MAX_ROWS`` rows of a product, for the outputs of one block; see ``tile_of``.

    ``bias`` and ``outputs`` begin with those of the first block. ``rest`` has room for a tile, for a block that has
    fewer outputs than ``WIDTH``. The sums of rows lie side by side.
    """
    column = block * WIDTH
    offsets, target = ahead(bias, column), ahead(outputs, column)
    if column + WIDTH <= num_outputs:
        _put(
            height, inputs, columns, offsets, target, sums, size, by_input, num_outputs, ahead_bytes, is_first, is_last
        )
    else:
        _put(height, inputs, columns, offsets, rest, sums, size, by_input, WIDTH, ahead_bytes, is_first, is_last)
        if is_last:
            for i in range(height):
                for j in range(num_outputs - column):
                    target[i * num_outputs + j] = rest[i * WIDTH + j]


@njit
def _put(height, inputs, weights, bias, outputs, sums, size, by_input, by_output, ahead_bytes, is_first, is_last):
    if height == 4:
        _tile4(inputs, weights, bias, outputs, sums, size, by_input, by_output, WIDTH, ahead_bytes, is_first, is_last)
    elif height == 3:
        _tile3(inputs, weights, bias, outputs, sums, size, by_input, by_output, WIDTH, ahead_bytes, is_first, is_last)
    elif height == 2:
        _tile2(inputs, weights, bias, outputs, sums, size, by_input, by_output, WIDTH, ahead_bytes, is_first, is_last)
    else:
        _tile1(inputs, weights, bias, outputs, sums, size, by_input, by_output, WIDTH, ahead_bytes, is_first, is_last)
