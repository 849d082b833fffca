"""Lays keys and values out as tiles read them.

Keys come as columns, ``[head_dim / together, WIDTH, together]`` for ``WIDTH`` keys; values in columns of as many
numbers as a tile has, ``[column, key / together, width, together]``. See ``numbers.together``.

Bfloat16 may be laid out as float32, which the type of what is laid out says: see ``processor.multiplies_pairs``.
"""

from __future__ import annotations

import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload
from numpy import int64

from baton_serve.workers.rank.native.addresses import ahead
from baton_serve.workers.rank.native.numbers import per_word, read, together
from baton_serve.workers.rank.native.processor import multiplies_pairs
from baton_serve.workers.rank.native.sums import width_of
from baton_serve.workers.rank.native.tiles import LANES, WIDTH, floats_from, load_as, paired, widen_inputs, widened

_WORDS = ir.VectorType(ir.IntType(32), LANES)
_SHORTS = ir.VectorType(ir.IntType(16), LANES)


def _are_wide(numbers):
    """Whether numbers, of this type of a pointer, are laid out as float32 although they are not."""
    return numbers.dtype == types.uint16 and not multiplies_pairs()


def laid_per_word(dtype: torch.dtype) -> int:
    """How many numbers of the type, as they are laid out, are one word."""
    return per_word(dtype) if multiplies_pairs() else 1


@intrinsic
def as_laid(context, numbers, scratch):
    """The scratch, as a pointer to what such numbers are laid out as."""
    target = scratch if _are_wide(numbers) else numbers

    def instruction(context, builder, signature, arguments):
        return builder.bitcast(arguments[1], context.get_value_type(target))

    return target(numbers, scratch), instruction


def lay_out_queries(queries, scratch, count, head_dim, by_query):
    """``count`` queries as what is multiplied with keys that are laid out, and how far it is from one to the next."""
    raise NotImplementedError("programs only")


@overload(lay_out_queries)
def _lay_out_queries(queries, scratch, count, head_dim, by_query):
    if not _are_wide(queries):
        return lambda queries, scratch, count, head_dim, by_query: (queries, by_query)

    def wide(queries, scratch, count, head_dim, by_query):
        for i in range(count):
            widen_inputs(ahead(queries, i * by_query), ahead(scratch, i * head_dim), head_dim)
        return scratch, head_dim

    return wide


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
    pair, step = together(laid), LANES * together(keys)
    whole = head_dim // step * step
    for number in range(0, whole, step):
        _transpose(keys, places, ahead(laid, number * WIDTH + first * pair), number)
    for number in range(whole, head_dim, pair):
        for key in range(LANES):
            for i in range(pair):
                _put_number(keys, places[key] + number + i, laid, number * WIDTH + (first + key) * pair + i)


@njit
def lay_out_values(values, places, count, laid, first_key, num_keys, head_dim):
    """``count`` values, at ``places``, as those of the keys from ``first_key`` on; there is room for ``num_keys``."""
    pair, column = together(laid), 0
    while column < head_dim:
        width = width_of(head_dim - column)
        line = column * num_keys + first_key * width
        for key in range(0, count // pair * pair, pair):
            for i in range(0, width, LANES):
                behind = places[key + pair - 1]
                _put_line(values, places[key] + column + i, behind + column + i, ahead(laid, line + i * pair))
            line += width * pair
        if count % pair != 0:
            for i in range(0, width, LANES):
                _put_lone_line(values, places[count - 1] + column + i, ahead(laid, line + i * pair))
        column += width


def _put_number(source, at, target, index):
    """Store a number as one of the type that it is laid out as."""
    raise NotImplementedError("programs only")


@overload(_put_number, inline="always")
def _put_number_as(source, at, target, index):
    if source.dtype == target.dtype:

        def same(source, at, target, index):
            target[index] = source[at]

        return same

    def wide(source, at, target, index):
        target[index] = read(source, at)

    return wide


@intrinsic
def _transpose(context, numbers, places, target, number):
    """``LANES`` words from ``number`` on of as many rows: each word's line is ``WIDTH`` behind the one before.

    A word whose two numbers become float32 has two lines.
    """

    def instructions(context, builder, signature, arguments):
        source, where, line, first = arguments
        rows = []
        for row in range(LANES):
            start = builder.gep(source, [builder.add(builder.load(builder.gep(where, [_long(row)])), first)])
            rows.append(load_as(builder, start, _WORDS, 2))
        is_wide = source.type != line.type
        lines: list[ir.Value] = []
        for words in _transposed(builder, rows):
            lines += widened(builder, words) if is_wide else [words]
        start = builder.bitcast(line, ir.IntType(32).as_pointer())
        for index, words in enumerate(lines):
            address = builder.gep(start, [_long(index * WIDTH)])
            builder.store(words, builder.bitcast(address, words.type.as_pointer())).align = 4
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
    """``LANES`` words: the numbers at ``at``; of bfloat16 each with one of those at ``behind``, or as float32."""

    def instructions(context, builder, signature, arguments):
        source, first, second, line = arguments
        if source.type != line.type:
            words = builder.bitcast(floats_from(builder, builder.gep(source, [first])), _WORDS)
        elif signature.args[0].dtype == types.uint16:
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
