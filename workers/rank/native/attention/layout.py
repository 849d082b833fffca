"""Lays keys and values out as tiles read them.

Keys come as columns, ``[head_dim / together, WIDTH, together]`` for ``WIDTH`` keys; values in columns of as many
numbers as a tile has, ``[column, key / together, width, together]``. See ``numbers.together``.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy import int64

from workers.rank.native.addresses import ahead, as_words
from workers.rank.native.numbers import together
from workers.rank.native.sums import width_of
from workers.rank.native.tiles import LANES, WIDTH, load_as, paired

_WORDS = ir.VectorType(ir.IntType(32), LANES)
_SHORTS = ir.VectorType(ir.IntType(16), LANES)


@njit
def find(places, table, begin, count, start, end, by_key, block_size, by_block):
    """Where ``count`` keys from ``begin`` on are: those of a block lie ``by_key`` numbers from each other.

    ``table`` has the number of each block. In place of what is before ``start``, or from ``end`` on, where anything may
    be, the nearest key is found. There has to be one in between.
    """
    first, last = max(0, start - begin), min(end - begin, count) - 1
    key = begin + first
    while key <= begin + last:
        block = key // block_size
        slot = key - block * block_size
        here = int64(table[block]) * by_block + slot * by_key
        length = min(block_size - slot, begin + last + 1 - key)
        for i in range(length):
            places[key - begin + i] = here + i * by_key
        key += length
    for i in range(first):
        places[i] = places[first]
    for i in range(last + 1, count):
        places[i] = places[last]


@njit
def lay_out_keys(keys, places, count, laid, head_dim):
    """``count`` keys, at ``places``, of at most ``WIDTH``.

    ``places`` has entries up to the next multiple of ``LANES``; two may be the same.
    """
    for first in range(0, count, LANES):
        lay_out_some_keys(keys, ahead(places, first), laid, first, head_dim)


@njit
def lay_out_some_keys(keys, places, laid, first, head_dim):
    """``LANES`` keys, at ``places``, as those from ``first`` on."""
    source, target, words = as_words(keys), as_words(laid), head_dim // together(keys)
    whole = words // LANES * LANES
    for word in range(0, whole, LANES):
        _transpose(keys, places, ahead(target, word * WIDTH + first), word)
    for key in range(LANES):
        line = places[key] // together(keys)
        for word in range(whole, words):
            target[word * WIDTH + first + key] = source[line + word]


@njit
def lay_out_values(values, places, count, laid, first_key, num_keys, head_dim):
    """``count`` values, at ``places``, as those of the keys from ``first_key`` on; there is room for ``num_keys``."""
    target, pair = as_words(laid), together(values)
    column = 0
    while column < head_dim:
        width = width_of(head_dim - column)
        line = (column * num_keys + first_key * width) // pair
        for key in range(0, count // pair * pair, pair):
            for i in range(0, width, LANES):
                behind = places[key + pair - 1]
                _put_line(values, places[key] + column + i, behind + column + i, ahead(target, line + i))
            line += width
        if count % pair != 0:
            for i in range(0, width, LANES):
                _put_lone_line(values, places[count - 1] + column + i, ahead(target, line + i))
        column += width


@intrinsic
def _transpose(context, numbers, places, target, word):
    """``LANES`` words from ``word`` on of as many rows: each word's line is ``WIDTH`` behind the one before."""

    def instructions(context, builder, signature, arguments):
        source, where, line, first = arguments
        rows = []
        for row in range(LANES):
            start = builder.gep(source, [builder.load(builder.gep(where, [_long(row)]))])
            words = builder.gep(builder.bitcast(start, ir.IntType(32).as_pointer()), [first])
            rows.append(load_as(builder, words, _WORDS, 2))
        for column, words in enumerate(_transposed(builder, rows)):
            address = builder.bitcast(builder.gep(line, [_long(column * WIDTH)]), _WORDS.as_pointer())
            builder.store(words, address).align = 4
        return context.get_dummy_value()

    return types.void(numbers, places, target, types.int64), instructions


def _transposed(builder, rows):
    """The columns of 16 rows: of four rows each by pairs of words, then of pairs, then of quarters of vectors."""
    low, high = _lanes_of_quarters(0, 16, 1, 17), _lanes_of_quarters(2, 18, 3, 19)
    pairs = [_mixed(builder, rows[row], rows[row + 1], lanes) for row in range(0, 16, 2) for lanes in (low, high)]
    low, high = _lanes_of_quarters(0, 1, 16, 17), _lanes_of_quarters(2, 3, 18, 19)
    # ``fours[i][c]``: words c, c + 4, c + 8 and c + 12 of rows 4 * i to 4 * i + 3.
    fours = [
        [_mixed(builder, pairs[i + half], pairs[i + half + 2], lanes) for half in (0, 1) for lanes in (low, high)]
        for i in range(0, 16, 4)
    ]
    even = [lane + 4 * quarter for quarter in (0, 2, 4, 6) for lane in range(4)]
    odd = [lane + 4 for lane in even]
    columns = [None] * 16
    for c in range(4):
        for half, lanes in enumerate((even, odd)):
            first = _mixed(builder, fours[0][c], fours[1][c], lanes)
            second = _mixed(builder, fours[2][c], fours[3][c], lanes)
            columns[4 * half + c] = _mixed(builder, first, second, even)
            columns[4 * half + c + 8] = _mixed(builder, first, second, odd)
    return columns


def _lanes_of_quarters(*lanes):
    return [lane + 4 * quarter for quarter in range(4) for lane in lanes]


def _mixed(builder, first, second, lanes):
    return builder.shuffle_vector(first, second, ir.Constant(_WORDS, lanes))


@intrinsic
def _put_line(context, values, at, behind, target):
    """``LANES`` words: the numbers at ``at``; of bfloat16 each together with one of those at ``behind``."""

    def instructions(context, builder, signature, arguments):
        source, first, second, line = arguments
        if signature.args[0].dtype == types.uint16:
            words = paired(
                builder, *(load_as(builder, builder.gep(source, [at]), _SHORTS, 2) for at in (first, second))
            )
        else:
            words = _numbers(builder, source, first)
        builder.store(words, builder.bitcast(line, _WORDS.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(values, types.int64, types.int64, target), instructions


@intrinsic
def _put_lone_line(context, values, at, target):
    """The same of numbers that are the last ones: of bfloat16 each together with a zero."""

    def instructions(context, builder, signature, arguments):
        source, first, line = arguments
        builder.store(_numbers(builder, source, first), builder.bitcast(line, _WORDS.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(values, types.int64, target), instructions


def _numbers(builder, source, at):
    """``LANES`` numbers as words; of bfloat16 the lower half of each."""
    address = builder.gep(source, [at])
    if address.type.pointee == ir.IntType(16):
        return builder.zext(load_as(builder, address, _SHORTS, 2), _WORDS)
    return load_as(builder, address, _WORDS, 4)


def _long(number):
    return ir.IntType(64)(number)
