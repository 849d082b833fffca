"""How programs read and write numbers of a type, and the exponential function.

Programs compute in float32. A bfloat16 is the upper half of a float32. Numba does not know the type, so it is an
unsigned integer of 16 bits here, and how numbers are read and written depends on the type of the pointer.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

_FLOAT = ir.FloatType()

#: How Numba names the elements of a tensor.
ELEMENTS = {torch.float32: types.float32, torch.bfloat16: types.uint16}


def read(numbers, index):
    """The number at ``index``, as a float32."""
    raise NotImplementedError("programs only")


def write(numbers, index, number):
    """Store a float32 at ``index``; as a bfloat16 the nearest one. A NaN may become an infinity."""
    raise NotImplementedError("programs only")


@overload(read, inline="always")
def _read(numbers, index):
    if numbers.dtype == types.float32:
        return lambda numbers, index: numbers[index]
    return lambda numbers, index: np.uint32(np.uint32(numbers[index]) << np.uint32(16)).view(np.float32)


@overload(write, inline="always")
def _write(numbers, index, number):
    if numbers.dtype == types.float32:

        def plain(numbers, index, number):
            numbers[index] = number

        return plain

    def narrowed(numbers, index, number):
        bits = np.float32(number).view(np.uint32)
        numbers[index] = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> 16)

    return narrowed


def together(numbers):
    """How many numbers are one word of 32 bits: one float32, or two bfloat16."""
    raise NotImplementedError("programs only")


@overload(together, inline="always")
def _together(numbers):
    if numbers.dtype == types.float32:
        return lambda numbers: 1
    return lambda numbers: 2


def per_word(dtype: torch.dtype) -> int:
    """``together`` for who calls programs."""
    return 4 // dtype.itemsize


@intrinsic
def fused(context, one, other, third):
    """``one * other + third`` of float32, rounded once where the processor does that as fast."""

    def instruction(context, builder, signature, arguments):
        kind = ir.FunctionType(_FLOAT, 3 * [_FLOAT])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.f32"), arguments)

    return types.float32(types.float32, types.float32, types.float32), instruction


#: Taylor's terms of 2 to the power of a number, the last first.
_TERM6, _TERM5, _TERM4, _TERM3, _TERM2, _TERM1 = (
    np.float32(math.log(2) ** order / math.factorial(order)) for order in range(6, 0, -1)
)


@njit(inline="always")
def exponential(number):
    """The exponential function of a float32, with a relative error below 4e-6; about 0 below -87.

    2 to a whole number is added to an exponent; 2 to the rest, between -1/2 and 1/2, is a polynomial.
    """
    power = min(max(number, np.float32(-87.0)), np.float32(88.0)) * np.float32(1.4426950408889634)
    whole = np.rint(power)
    rest = power - whole
    result = fused(_TERM6, rest, _TERM5)
    result = fused(result, rest, _TERM4)
    result = fused(result, rest, _TERM3)
    result = fused(result, rest, _TERM2)
    result = fused(result, rest, _TERM1)
    result = fused(result, rest, np.float32(1.0))
    return np.int32(np.float32(result).view(np.int32) + np.int32(np.int32(whole) << np.int32(23))).view(np.float32)


@njit(inline="always")
def weigh(scores, first, end, scale):
    """Make weights of the scores from ``first`` to ``end``: the exponential function of what each is more than the
    largest, times ``scale``. Returns their sum, of before they are rounded.
    """
    most = np.int32(-(2**31))
    for i in range(first, end):
        most = np.int32(max(most, ordered(read(scores, i))))
    largest = unordered(most)
    total = np.float32(0.0)
    for i in range(first, end):
        power = exponential((read(scores, i) - largest) * scale)
        total += power
        write(scores, i, power)
    return total


@njit(inline="always")
def ordered(number):
    """An int32 that is larger for a larger float32: compilers find the largest of these faster than of floats."""
    bits = np.float32(number).view(np.int32)
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(inline="always")
def unordered(key):
    """The float32 of ``ordered``."""
    return np.int32(key ^ np.int32(np.int32(key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
