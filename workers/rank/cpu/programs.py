"""The programs that run on a CPU, in Numba's subset of Python: attention, norms, rotations and gates.

They compute in float32. Numba does not know bfloat16, which is the upper half of a float32: it is an unsigned integer
of 16 bits here, and ``read`` and ``write`` go by the type of the array. Sums may be computed in any order.

``compiled`` compiles a program for a type of numbers; its parameters are arrays that lie in memory row by row.
"""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

#: Sums in another order, and products and sums rounded once, as vectors of the processor compute them. What is computed
#: of a NaN is not defined.
_FAST = {"nnan", "nsz", "reassoc", "contract", "arcp"}
#: LLVM puts these functions into their callers. A function that it left outside would be, in the process that compiles
#: it, code of its own and, in one that loads a program from the cache, the code beside the program: other last bits.
_PART = {"fastmath": _FAST, "forceinline": True}
#: Numbers of a head. ``compiled`` has the value: a loop of a known length is compiled for it.
HEAD_DIM = 0
#: Taylor's terms of 2 to the power of a number, from the highest order on.
_TERMS = tuple(np.float32(math.log(2) ** order / math.factorial(order)) for order in range(6, -1, -1))


def read(numbers, index):
    """The number at ``index``, as a float32."""
    raise NotImplementedError("programs only")


@overload(read)
def _read(numbers, index):
    if numbers.dtype == types.float32:
        return lambda numbers, index: numbers[index]
    return lambda numbers, index: np.uint32(np.uint32(numbers[index]) << np.uint32(16)).view(np.float32)


def write(numbers, index, number):
    """Store a float32 at ``index``; as a bfloat16 the nearest one. A NaN may become any number."""
    raise NotImplementedError("programs only")


@overload(write)
def _write(numbers, index, number):
    if numbers.dtype == types.float32:

        def plain(numbers, index, number):
            numbers[index] = number

        return plain

    def nearest(numbers, index, number):
        bits = np.float32(number).view(np.uint32)
        is_odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        # Each step is cast: Numba makes 64 bits of sums of 32, and half as many are in a vector.
        numbers[index] = np.uint16(np.uint32(np.uint32(bits + np.uint32(0x7FFF) + is_odd) >> np.uint32(16)))

    return nearest


@njit(**_PART)
def _exponential(number):
    """The exponential function, with a relative error below 4e-6; about 0 below -87.

    2 to a whole number is added to an exponent; 2 to the rest, between -1/2 and 1/2, is a polynomial.
    """
    power = min(max(number, np.float32(-87.0)), np.float32(88.0)) * np.float32(1.4426950408889634)
    whole = np.rint(power)
    rest, result = power - whole, _TERMS[0]
    for term in _TERMS[1:]:
        result = result * rest + term
    return np.int32(np.float32(result).view(np.int32) + (np.int32(whole) << np.int32(23))).view(np.float32)


@njit(**_PART)
def _flipped(bits):
    """The bits of a float32 as an int32 that is larger for a larger number, and back. Compilers find the largest of
    these faster than of floats.
    """
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(**_PART)
def _weigh(scores, scale):
    """Make weights of scores, in place: the exponentials of what each is more than the largest,
    times ``scale``. Returns their sum, of before they are rounded.
    """
    most = np.int32(-(2**31))
    for i in range(len(scores)):
        most = np.int32(max(most, _flipped(np.float32(read(scores, i)).view(np.int32))))
    largest = np.int32(_flipped(most)).view(np.float32)
    total = np.float32(0.0)
    for i in range(len(scores)):
        weight = _exponential((read(scores, i) - largest) * scale)
        total += weight
        write(scores, i, weight)
    return total


@njit(**_PART)
def _score(query, keys, scores, head_dim):
    """``scores`` ``[head, key]``: the products of ``query`` ``[head, head_dim]`` and ``keys`` ``[key, head_dim]``."""
    heads, num_keys = len(query), len(keys)
    # Four sums at a time: the additions of one have to wait for each other.
    for at in range(0, num_keys - 3, 4):
        key0, key1, key2, key3 = keys[at], keys[at + 1], keys[at + 2], keys[at + 3]
        for head in range(heads):
            asked, found = query[head], scores[head, at : at + 4]
            dot0 = dot1 = dot2 = dot3 = np.float32(0.0)
            for i in range(head_dim):
                dot0 += asked[i] * read(key0, i)
                dot1 += asked[i] * read(key1, i)
                dot2 += asked[i] * read(key2, i)
                dot3 += asked[i] * read(key3, i)
            found[0], found[1], found[2], found[3] = dot0, dot1, dot2, dot3
    for at in range(num_keys // 4 * 4, num_keys):
        for head in range(heads):
            dot = np.float32(0.0)
            for i in range(head_dim):
                dot += query[head, i] * read(keys[at], i)
            scores[head, at] = dot


@njit(**_PART)
def _add(weights, values, sums, head_dim):
    """Add ``values`` ``[key, head_dim]`` times ``weights`` ``[head, key]`` to ``sums`` ``[head, head_dim]``."""
    heads, num_keys = len(sums), len(values)
    # Four keys at a time, so that sums are loaded and stored once for four.
    for at in range(0, num_keys - 3, 4):
        value0, value1, value2, value3 = values[at], values[at + 1], values[at + 2], values[at + 3]
        for head in range(heads):
            total, weight = sums[head], weights[head, at : at + 4]
            weight0, weight1, weight2, weight3 = weight[0], weight[1], weight[2], weight[3]
            for i in range(head_dim):
                total[i] += (
                    weight0 * read(value0, i)
                    + weight1 * read(value1, i)
                    + weight2 * read(value2, i)
                    + weight3 * read(value3, i)
                )
    for at in range(num_keys // 4 * 4, num_keys):
        for head in range(heads):
            for i in range(head_dim):
                sums[head, i] += weights[head, at] * read(values[at], i)


def attend_one_token(query, cache, tables, ends, head_slots, block_slots, block_size, window, out):
    """Rows of one token: ``query`` and ``out`` ``[row, head, head_dim]`` float32, the query times the scale.

    ``cache`` ``[slot, head_dim]`` begins with the layer's first key. The keys of KV head ``h`` in block ``b`` are the
    ``block_size`` slots from ``b * block_slots + head_slots[h]`` on, and the values are those behind them. ``tables``
    ``[row, block]`` and ``ends`` ``[row]`` are those of ``PagedRows``. A row sees its last ``window`` tokens.
    """
    rows, heads, _ = query.shape
    head_dim = HEAD_DIM
    kv_heads = len(head_slots)
    shared = heads // kv_heads
    for number in prange(rows * kv_heads):
        row, kv_head = number // kv_heads, number % kv_heads
        mine = slice(kv_head * shared, (kv_head + 1) * shared)
        end = np.int64(ends[row])
        start = max(0, end - window)
        first, last = start // block_size, (end - 1) // block_size + 1
        scores = np.empty((shared, end - start), np.float32)
        sums = np.zeros((shared, head_dim), np.float32)
        for block in range(first, last):
            slot = tables[row, block] * block_slots + head_slots[kv_head]
            begin, stop = max(0, start - block * block_size), min(block_size, end - block * block_size)
            seen = slice(block * block_size + begin - start, block * block_size + stop - start)
            _score(query[row, mine], cache[slot + begin : slot + stop], scores[:, seen], head_dim)
        for head in range(shared):
            inverse = np.float32(1.0) / _weigh(scores[head], np.float32(1.0))
            for i in range(end - start):
                scores[head, i] *= inverse
        for block in range(first, last):
            slot = tables[row, block] * block_slots + head_slots[kv_head] + block_size
            begin, stop = max(0, start - block * block_size), min(block_size, end - block * block_size)
            seen = slice(block * block_size + begin - start, block * block_size + stop - start)
            _add(scores[:, seen], cache[slot + begin : slot + stop], sums, head_dim)
        out[row, mine] = sums


def causal_softmax(scores, sums, first_query, num_queries, window, scale):
    """The softmax of ``scores`` ``[row, key]``, in place but for a division by ``sums`` ``[row]``, float32.

    Row ``r`` is of query ``first_query + r % num_queries``, which attends to the ``window`` keys that end with the key
    of the same number. The other scores become 0.
    """
    num_keys = scores.shape[1]
    for row in prange(len(scores)):
        line = scores[row]
        end = first_query + row % num_queries + 1
        start = max(0, end - window)
        sums[row] = _weigh(line[start:end], scale)
        for i in range(start):
            write(line, i, np.float32(0.0))
        for i in range(end, num_keys):
            write(line, i, np.float32(0.0))


def rms_norm(inputs, weight, outputs, eps):
    """Scale rows ``[row, size]`` to a mean square of 1, then by ``weight`` ``[size]``."""
    size = len(weight)
    for row in prange(len(inputs)):
        ours, theirs, total = inputs[row], outputs[row], np.float32(0.0)
        for i in range(size):
            total += read(ours, i) * read(ours, i)
        scale = np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)
        for i in range(size):
            write(theirs, i, read(ours, i) * scale * read(weight, i))


def rotate(product, cosines, sines, num_heads):
    """Turn the first heads of each token of ``product`` ``[token, size]`` by angles ``[token, head_dim]``, in place."""
    head_dim = cosines.shape[1]
    half = head_dim // 2
    for token in prange(len(product)):
        cosine, sine = cosines[token], sines[token]
        for number in range(num_heads):
            head = product[token, number * head_dim : (number + 1) * head_dim]
            for i in range(half):
                low, high = read(head, i), read(head, half + i)
                write(head, i, low * read(cosine, i) - high * read(sine, i))
                write(head, half + i, high * read(cosine, half + i) + low * read(sine, half + i))


def gate(product, outputs):
    """Of ``product`` ``[token, 2 * size]``, SiLU of the first half times the second, to ``outputs``."""
    size = outputs.shape[1]
    for token in prange(len(product)):
        opened, other, gated = product[token, :size], product[token, size:], outputs[token]
        for i in range(size):
            number = read(opened, i)
            write(gated, i, number / (np.float32(1.0) + _exponential(-number)) * read(other, i))


def compiled(name: str, dtype: Any, head_dim: int, *, parallel: bool) -> Any:
    """The program for numbers of Numba's type ``dtype``, computed by Numba's threads if it is ``parallel``.

    The machine code is kept in Numba's cache, if there is a folder for it. ``head_dim``: 0 where there are no heads.
    """
    f4, i4, i8 = types.float32, types.int32, types.int64
    parameters = {
        "attend_one_token": (f4[:, :, ::1], dtype[:, ::1], i4[:, ::1], i4[::1], i8[::1], i8, i8, i8, f4[:, :, ::1]),
        "causal_softmax": (dtype[:, ::1], f4[::1], i8, i8, i8, f4),
        "rms_norm": (dtype[:, ::1], dtype[::1], dtype[:, ::1], f4),
        "rotate": (dtype[:, ::1], dtype[:, ::1], dtype[:, ::1], i8),
        "gate": (dtype[:, ::1], dtype[:, ::1]),
    }
    program = globals()[name]
    # The cache goes by this name. Two processes that compile one name for two types may exchange what they keep.
    named = FunctionType(program.__code__, {**globals(), "HEAD_DIM": head_dim}, name)
    named.__qualname__ = f"{name}_{dtype}_{head_dim}_{'parallel' if parallel else 'serial'}"
    signature = types.void(*parameters[name])
    options = {"fastmath": _FAST, "nogil": True, "parallel": parallel, "error_model": "numpy"}
    try:
        return njit(signature, cache=True, **options)(named)
    # A file system that is read-only, or full, or files that were cut off: what these raise has many names. A program
    # that does not compile fails here again.
    except Exception:  # noqa: BLE001
        return njit(signature, **options)(named)
