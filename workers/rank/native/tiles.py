"""Parts of a product that stay in the processor's registers, and threads that compute parts of a program.

What Numba makes of a loop over numbers leaves sums in memory. So these are written in LLVM's own terms, for vectors of
16 float32; LLVM makes of them what the processor has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    import torch

#: Float32 of a vector; and outputs and rows of the tile that is used most.
LANES, WIDTH = 16, 64
MAX_ROWS = 4

_BYTE, _INT, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(_INT, LANES)
_SHORTS = ir.VectorType(ir.IntType(16), LANES)


def per_word(dtype: torch.dtype) -> int:
    """How many numbers of the type a word of 32 bits has: they are multiplied at a time."""
    return 4 // dtype.itemsize


def tile_of(num_rows, num_vectors):
    """``f(inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, is_first, is_last)``: adds to
    ``sums`` the products of ``size`` inputs of each row and the columns of ``weights``, one input after the other.

    There are ``num_vectors * LANES`` columns. Weights lie as in a block of ``weights.laid_out``. At first there are no
    sums yet; at last they, and the bias, are the outputs, and are not kept. Distances count numbers.
    """

    @intrinsic
    def tile(context, inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, is_first, is_last):
        def instructions(context, builder, signature, arguments):
            _Tile(builder, num_rows, num_vectors, inputs.dtype == types.uint16, *arguments).write()
            return context.get_dummy_value()

        signature = types.void(
            inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, is_first, is_last
        )
        return signature, instructions

    return tile


class _Tile:
    """Writes the instructions of a tile."""

    def __init__(
        self,
        builder,
        num_rows,
        num_vectors,
        is_half,
        inputs,
        weights,
        bias,
        outputs,
        sums,
        size,
        by_input,
        by_output,
        by_sum,
        is_first,
        is_last,
    ):
        self._builder = builder
        self._rows = range(num_rows)
        self._is_half = is_half
        self._inputs, self._weights, self._bias, self._outputs, self._sums = inputs, weights, bias, outputs, sums
        self._size = size
        self._by_input, self._by_output, self._by_sum = by_input, by_output, by_sum
        self._is_first, self._is_last = is_first, is_last
        self._vectors = range(num_vectors)
        self._total = [[cgutils.alloca_once(builder, _FLOATS) for _ in self._vectors] for _ in self._rows]

    def write(self):
        builder = self._builder
        with builder.if_else(self._is_set(self._is_first)) as (at_first, later):
            with at_first:
                self._each(lambda row, vector: ir.Constant(_FLOATS, [0.0] * LANES))
            with later:
                self._each(lambda row, vector: self._load(self._sum(row, vector), 4))
        self._add()
        with builder.if_else(self._is_set(self._is_last)) as (at_last, before):
            with at_last:
                for vector in self._vectors:
                    bias = self._number(self._vector_of(self._bias, vector))
                    for row in self._rows:
                        total = builder.fadd(builder.load(self._total[row][vector]), bias)
                        self._put(row, vector, total)
            with before:
                for row in self._rows:
                    for vector in self._vectors:
                        builder.store(builder.load(self._total[row][vector]), self._sum(row, vector)).align = 4

    def _add(self):
        """Go over the inputs, two of them at a time if they are bfloat16."""
        builder = self._builder
        rows = [builder.gep(self._inputs, [self._times(row, self._by_input)]) for row in self._rows]
        weights = builder.bitcast(self._weights, _BYTE.as_pointer())
        if self._is_half:
            rows = [builder.bitcast(row, _INT.as_pointer()) for row in rows]
            kind = ir.FunctionType(_FLOATS, [_FLOATS, _INTS, _INTS])
            pairs = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
        else:
            kind = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _FLOATS])
            fused = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32")
        count = builder.lshr(self._size, _LONG(1)) if self._is_half else self._size
        with cgutils.for_range(builder, count) as loop:
            line = builder.mul(loop.index, _LONG(4 * LANES * len(self._vectors)))
            columns = [
                self._load(
                    builder.bitcast(
                        builder.gep(weights, [builder.add(line, _LONG(4 * LANES * vector))]),
                        (_INTS if self._is_half else _FLOATS).as_pointer(),
                    ),
                    4,
                )
                for vector in self._vectors
            ]
            for row in self._rows:
                given = self._load(builder.gep(rows[row], [loop.index]), 2 if self._is_half else 4)
                given = self._spread(given)
                for vector, column in zip(self._vectors, columns, strict=True):
                    place = self._total[row][vector]
                    total = builder.load(place)
                    arguments = [total, given, column] if self._is_half else [given, column, total]
                    builder.store(builder.call(pairs if self._is_half else fused, arguments), place)

    def _each(self, initial):
        for row in self._rows:
            for vector in self._vectors:
                self._builder.store(initial(row, vector), self._total[row][vector])

    def _put(self, row, vector, total):
        """Store sums as outputs: as bfloat16 the nearest ones, see ``numbers.write``."""
        builder = self._builder
        start = builder.gep(self._outputs, [self._times(row, self._by_output)])
        address = self._vector_of(start, vector)
        if self._is_half:
            bits = builder.bitcast(total, _INTS)
            odd = builder.and_(builder.lshr(bits, _all(16)), _all(1))
            bits = builder.add(builder.add(bits, _all(0x7FFF)), odd)
            total = builder.trunc(builder.lshr(bits, _all(16)), _SHORTS)
        builder.store(total, address).align = 2 if self._is_half else 4

    def _number(self, address):
        """The float32 of a vector of numbers."""
        if not self._is_half:
            return self._load(address, 4)
        bits = self._builder.zext(self._load(address, 2), _INTS)
        return self._builder.bitcast(self._builder.shl(bits, _all(16)), _FLOATS)

    def _vector_of(self, start, vector):
        kind = _SHORTS if self._is_half else _FLOATS
        return self._builder.bitcast(self._builder.gep(start, [_LONG(LANES * vector)]), kind.as_pointer())

    def _sum(self, row, vector):
        index = self._builder.add(self._times(row, self._by_sum), _LONG(LANES * vector))
        return self._builder.bitcast(self._builder.gep(self._sums, [index]), _FLOATS.as_pointer())

    def _times(self, row, distance):
        return self._builder.mul(_LONG(row), distance)

    def _load(self, address, alignment):
        loaded = self._builder.load(address)
        loaded.align = alignment
        return loaded

    def _spread(self, number):
        kind = ir.VectorType(number.type, LANES)
        single = self._builder.insert_element(ir.Constant(kind, ir.Undefined), number, _INT(0))
        return self._builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), ir.Constant(_INTS, [0] * LANES))

    def _is_set(self, flag):
        return self._builder.icmp_signed("!=", flag, _LONG(0))


def _all(number):
    return ir.Constant(_INTS, [number] * LANES)


@intrinsic
def ahead(context, numbers, count):
    """The address that is ``count`` numbers further on."""

    def instruction(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return numbers(numbers, types.int64), instruction


def room_of(count):
    """``f(like)``: the address of ``count`` numbers as ``like`` points to, which are there until the function ends."""

    @intrinsic
    def room(context, like):
        def instruction(context, builder, signature, arguments):
            with builder.goto_entry_block():
                return builder.alloca(arguments[0].type.pointee, _LONG(count))

        return like(like), instruction

    return room


def float_room_of(count):
    """``f()``: the address of ``count`` float32, which are there until the function ends."""

    @intrinsic
    def room(context):
        def instruction(context, builder, signature, arguments):
            with builder.goto_entry_block():
                return builder.alloca(ir.FloatType(), _LONG(count))

        return types.CPointer(types.float32)(), instruction

    return room


@intrinsic
def value_of(context, pointer):
    """A pointer as the int64 that it is."""

    def instruction(context, builder, signature, arguments):
        return builder.ptrtoint(arguments[0], _LONG)

    return types.int64(pointer), instruction


@intrinsic
def as_type_of(context, like, pointer):
    """The same address, as a pointer of the type of ``like``."""

    def instruction(context, builder, signature, arguments):
        return builder.bitcast(arguments[1], arguments[0].type)

    return like(like, pointer), instruction


@intrinsic
def as_floats(context, pointer):
    """The same address, of float32."""

    def instruction(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(pointer), instruction


def has_team() -> bool:
    """Whether torch's threads can be had: GNU's OpenMP, or one that has its functions as well."""
    names = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
    return all(binding.address_of_symbol(name) for name in names)


@intrinsic
def as_team(context, body, threads, numbers):
    """Have torch's threads call ``body``, the address of a function, with the address of ``numbers``, a tuple of int64.

    Waits until all have returned. ``threads`` should be what torch has: OpenMP ends threads for a smaller team, and
    starts new ones for a larger one. It may give fewer, see ``team_size``.
    """

    def instruction(context, builder, signature, arguments):
        address, count, given = arguments
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, _INT, _INT])
        parallel = cgutils.get_or_insert_function(builder.module, kind, "GOMP_parallel")
        place = cgutils.alloca_once(builder, given.type)
        builder.store(given, place)
        function = builder.inttoptr(address, pointer)
        builder.call(parallel, [function, builder.bitcast(place, pointer), builder.trunc(count, _INT), _INT(0)])
        return context.get_dummy_value()

    return types.void(body, threads, numbers), instruction


@intrinsic
def wait_for_team(context):
    """Wait until all threads of ``as_team`` have come here."""

    def instruction(context, builder, signature, arguments):
        barrier = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "GOMP_barrier")
        builder.call(barrier, [])
        return context.get_dummy_value()

    return types.void(), instruction


def _asks(name):
    @intrinsic
    def ask(context):
        def instruction(context, builder, signature, arguments):
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_INT, []), name)
            return builder.sext(builder.call(function, []), _LONG)

        return types.int64(), instruction

    return ask


#: ``f()``: how many threads really call the body of ``as_team``, and which one of them this is, from 0 on.
team_size, place_in_team = _asks("omp_get_num_threads"), _asks("omp_get_thread_num")
