"""The softmax of programs of tiles, and their outputs: one order of additions, whoever computes them.

A compiler that may add in another order does so as it likes best, and does it differently where it puts a function into
another one, or takes it from Numba's cache. So what rounds is written in LLVM's terms, in which nothing of that is
allowed.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from baton_serve.workers.rank.native.addresses import ahead
from baton_serve.workers.rank.native.numbers import ordered, together, unordered, write
from baton_serve.workers.rank.native.tiles import LANES, WIDTH, load, put, spread, sum_of

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_LANES = ir.Constant(_INTS, list(range(LANES)))
#: The exponential function of numbers up to 0 is 2 to a whole number, which is an exponent of a float32, times 2 to the
#: rest, between -1/2 and 1/2, which is a polynomial (Taylor's). Below this number it is about 0.
_LEAST = -87.0
_LOG2_E, _LN_2 = 1.4426950408889634, 0.6931471805599453
_TAYLOR = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


@register_jitable
def whole_tiles(num_keys):
    """So many keys, and those that are missing of the last tile."""
    return -(-num_keys // WIDTH) * WIDTH


@njit
def softmax(scores, weights, start, end, stop, scale):
    """Weights of scores from ``start`` to ``end``, 0 for the others before ``stop``; returns one over their sum.

    Relative errors of the exponentials are below 4e-6.
    """
    most = np.int32(-(2**31))
    for i in range(start, end):
        most = np.int32(max(most, ordered(scores[i])))
    inverse = _exponentials(ahead(scores, start), end - start, unordered(most), scale)
    for i in range(start):
        scores[i] = np.float32(0.0)
    for i in range(end, stop):
        scores[i] = np.float32(0.0)
    if together(weights) > 1:
        for i in range(stop):
            write(weights, i, scores[i])
    return inverse


@njit
def put_rows(outputs, sums, inverses, rows, width, by_output):
    """The sums of some rows, times their inverses, as outputs."""
    for row in range(rows):
        for i in range(0, width, LANES):
            put(ahead(outputs, row * by_output + i), ahead(sums, row * width + i), inverses[row])


@intrinsic
def _exponentials(context, scores, count, largest, scale):
    """In place: the exponential function of what a score is more than the largest, times ``scale``. One over the sum.

    The sum is that of ``LANES`` sums, each of every ``LANES``-th score.
    """

    def instructions(context, builder, signature, arguments):
        first, count, largest, scale = arguments
        largest, scale = spread(builder, largest), spread(builder, scale)

        def exponential(numbers):
            return _exponential(builder, builder.fmul(builder.fsub(numbers, largest), scale))

        total = cgutils.alloca_once(builder, _FLOATS)
        builder.store(ir.Constant(_FLOATS, [0.0] * LANES), total)
        vectors = builder.lshr(count, _LONG(4))
        with cgutils.for_range(builder, vectors) as loop:
            place = builder.bitcast(builder.gep(first, [builder.shl(loop.index, _LONG(4))]), _FLOATS.as_pointer())
            result = exponential(load(builder, place, 4))
            builder.store(result, place).align = 4
            builder.store(builder.fadd(builder.load(total), result), total)
        # What is left is less than a vector; lanes behind it do not count.
        before = builder.shl(vectors, _LONG(4))
        is_there = builder.icmp_signed("<", _LANES, spread(builder, builder.trunc(builder.sub(count, before), _INT)))
        place = builder.bitcast(builder.gep(first, [before]), _FLOATS.as_pointer())
        result = exponential(_masked(builder, "load", _FLOATS, [place, _INT(4), is_there, largest]))
        _masked(builder, "store", ir.VoidType(), [result, place, _INT(4), is_there])
        result = builder.select(is_there, result, ir.Constant(_FLOATS, [0.0] * LANES))
        builder.store(builder.fadd(builder.load(total), result), total)
        return builder.fdiv(_FLOAT(1.0), sum_of(builder, builder.load(total)))

    return types.float32(scores, types.int64, types.float32, types.float32), instructions


def _exponential(builder, number):
    def all_of(value):
        return ir.Constant(_FLOATS, [value] * LANES)

    is_less = builder.fcmp_ordered("<", number, all_of(_LEAST))
    power = builder.fmul(builder.select(is_less, all_of(_LEAST), number), all_of(_LOG2_E))
    whole = _call(builder, "llvm.floor.v16f32", [builder.fadd(power, all_of(0.5))])
    rest = builder.fmul(builder.fsub(power, whole), all_of(_LN_2))
    result = all_of(_TAYLOR[0])
    for term in _TAYLOR[1:]:
        result = _call(builder, "llvm.fma.v16f32", [result, rest, all_of(term)])
    exponent = builder.add(builder.fptosi(whole, _INTS), ir.Constant(_INTS, [127] * LANES))
    scaled = builder.bitcast(builder.shl(exponent, ir.Constant(_INTS, [23] * LANES)), _FLOATS)
    return builder.fmul(result, scaled)


def _masked(builder, what, result, arguments):
    kind = ir.FunctionType(result, [one.type for one in arguments])
    name = f"llvm.masked.{what}.v16f32.p0v16f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _call(builder, name, arguments):
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(arguments))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)
