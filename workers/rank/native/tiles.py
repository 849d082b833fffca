"""Parts of a product that stay in the processor's registers.

What Numba makes of a loop over numbers leaves sums in memory. So these are written in LLVM's own terms, for vectors of
16 float32; LLVM makes of them what the processor has.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from workers.rank.native.addresses import prefetch

#: Float32 of a vector; and outputs and rows of the tile that is used most.
LANES, WIDTH = 16, 64
MAX_ROWS = 4

_BYTE, _SHORT, _INT, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(_INT, LANES)
_SHORTS = ir.VectorType(_SHORT, LANES)


def tile_of(num_rows, num_vectors):
    """``f(inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, is_first, is_last)``: adds to
    ``sums`` the products of ``size`` inputs of each row and the columns of ``weights``, one input after the other.

    There are ``num_vectors * LANES`` columns. Weights lie as in a block of ``weights.laid_out``. At first there are no
    sums yet; at last they, and the bias, are the outputs, and are not kept. Distances count numbers.
    """

    @intrinsic
    def tile(context, inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, is_first, is_last):
        def instructions(context, builder, signature, arguments):
            inputs_, weights_, bias_, outputs_, sums_, size_, by_input_, by_output_, by_sum_, first, last = arguments
            rows = _Rows(builder, num_rows, num_vectors, inputs_, by_input_, sums_, by_sum_)
            rows.begin(first)
            rows.add(size_, rows.laid(weights_))
            with builder.if_else(_is_set(builder, last)) as (at_last, before):
                with at_last:
                    rows.put(bias_, outputs_, by_output_)
                with before:
                    rows.keep()
            return context.get_dummy_value()

        signature = types.void(
            inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, is_first, is_last
        )
        return signature, instructions

    return tile


def sums_of(num_rows, num_vectors):
    """``f(inputs, weights, sums, size, by_input, by_sum, is_first)``: the same, and sums are kept."""

    @intrinsic
    def tile(context, inputs, weights, sums, size, by_input, by_sum, is_first):
        def instructions(context, builder, signature, arguments):
            inputs_, weights_, sums_, size_, by_input_, by_sum_, first = arguments
            rows = _Rows(builder, num_rows, num_vectors, inputs_, by_input_, sums_, by_sum_)
            rows.sum(first, size_, rows.laid(weights_))
            return context.get_dummy_value()

        return types.void(inputs, weights, sums, size, by_input, by_sum, is_first), instructions

    return tile


def fetching_sums_of(num_rows, num_vectors):
    """``f(inputs, weights, source, soon, shift, sums, size, by_input, by_sum, is_first)``: the same. Meanwhile the
    processor fetches what will be laid out next: ``1 << shift`` lines of ``source`` from each place of ``soon`` on.

    Four lines for each word of weights, as many as ``WIDTH`` columns have; a core waits for few at a time.
    """

    @intrinsic
    def tile(context, inputs, weights, source, soon, shift, sums, size, by_input, by_sum, is_first):
        def instructions(context, builder, signature, arguments):
            inputs_, weights_, source_, soon_, shift_, sums_, size_, by_input_, by_sum_, first = arguments
            rows = _Rows(builder, num_rows, num_vectors, inputs_, by_input_, sums_, by_sum_)
            rows.sum(first, size_, rows.fetching(rows.laid(weights_), source_, soon_, shift_))
            return context.get_dummy_value()

        return types.void(inputs, weights, source, soon, shift, sums, size, by_input, by_sum, is_first), instructions

    return tile


def placed_sums_of(num_rows, num_vectors):
    """``f(inputs, weights, places, soon, sums, size, by_input, by_sum, is_first)``: the same, but the weights of an
    input lie side by side, where ``places``, for each input, says. Fetches what is at the places of ``soon``.
    """

    @intrinsic
    def tile(context, inputs, weights, places, soon, sums, size, by_input, by_sum, is_first):
        def instructions(context, builder, signature, arguments):
            inputs_, weights_, places_, soon_, sums_, size_, by_input_, by_sum_, first = arguments
            rows = _Rows(builder, num_rows, num_vectors, inputs_, by_input_, sums_, by_sum_)
            rows.sum(first, size_, rows.placed(weights_, places_, soon_))
            return context.get_dummy_value()

        return types.void(inputs, weights, places, soon, sums, size, by_input, by_sum, is_first), instructions

    return tile


@intrinsic
def put(context, outputs, sums, factor):
    """Store ``LANES`` sums, times a factor, as outputs."""

    def instructions(context, builder, signature, arguments):
        target, source, factor = arguments
        total = load(builder, builder.bitcast(source, _FLOATS.as_pointer()), 4)
        _store(builder, builder.fmul(total, spread(builder, factor)), target)
        return context.get_dummy_value()

    return types.void(outputs, sums, types.float32), instructions


@intrinsic
def squares(context, numbers, count):
    """The sum of squares of ``count`` numbers, a multiple of ``WIDTH``: that of ``WIDTH`` sums, each of every
    ``WIDTH``-th square.
    """

    def instructions(context, builder, signature, arguments):
        first, count = arguments
        kind = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _FLOATS])
        fused = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v16f32")
        totals = [cgutils.alloca_once(builder, _FLOATS) for _ in range(WIDTH // LANES)]
        for total in totals:
            builder.store(ir.Constant(_FLOATS, [0.0] * LANES), total)
        with cgutils.for_range_slice(builder, _LONG(0), count, _LONG(WIDTH), _LONG) as (index, _):
            for vector, total in enumerate(totals):
                number = _number(builder, builder.gep(first, [builder.add(index, _LONG(LANES * vector))]))
                builder.store(builder.call(fused, [number, number, builder.load(total)]), total)
        low, high = (builder.fadd(*map(builder.load, pair)) for pair in (totals[::2], totals[1::2]))
        return sum_of(builder, builder.fadd(low, high))

    return types.float32(numbers, types.int64), instructions


class _Rows:
    """Writes the instructions for the sums of some rows, of ``num_vectors`` vectors each, which stay in registers."""

    def __init__(self, builder, num_rows, num_vectors, inputs, by_input, sums, by_sum):
        self._builder = builder
        self._rows, self._vectors = range(num_rows), range(num_vectors)
        self._is_half = inputs.type.pointee == _SHORT
        #: Numbers of a line of the processor's cache.
        self._per_line = 2 * LANES if self._is_half else LANES
        self._inputs, self._by_input = inputs, by_input
        self._sums, self._by_sum = sums, by_sum
        self._total = [[cgutils.alloca_once(builder, _FLOATS) for _ in self._vectors] for _ in self._rows]

    def begin(self, is_first):
        """With nothing, or with the sums that were kept."""
        with self._builder.if_else(_is_set(self._builder, is_first)) as (at_first, later):
            with at_first:
                self._each(lambda row, vector: ir.Constant(_FLOATS, [0.0] * LANES))
            with later:
                self._each(lambda row, vector: load(self._builder, self._sum(row, vector), 4))

    def keep(self):
        for row in self._rows:
            for vector in self._vectors:
                self._builder.store(self._builder.load(self._total[row][vector]), self._sum(row, vector)).align = 4

    def sum(self, is_first, size, columns):
        """All of it, for sums that are kept."""
        self.begin(is_first)
        self.add(size, columns)
        self.keep()

    def put(self, bias, outputs, by_output):
        """Store sums, with the bias, as outputs."""
        for vector in self._vectors:
            more = _number(self._builder, self._builder.gep(bias, [_LONG(LANES * vector)]))
            for row in self._rows:
                total = self._builder.fadd(self._builder.load(self._total[row][vector]), more)
                place = self._builder.add(self._times(row, by_output), _LONG(LANES * vector))
                _store(self._builder, total, self._builder.gep(outputs, [place]))

    def add(self, size, columns):
        """Go over the inputs, two of them at a time if they are bfloat16.

        ``columns(i)`` has what the ``i``-th is multiplied with.
        """
        builder = self._builder
        rows = [builder.gep(self._inputs, [self._times(row, self._by_input)]) for row in self._rows]
        if self._is_half:
            rows = [builder.bitcast(row, _INT.as_pointer()) for row in rows]
            kind = ir.FunctionType(_FLOATS, [_FLOATS, _INTS, _INTS])
            pairs = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
        else:
            kind = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _FLOATS])
            fused = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32")
        count = builder.lshr(size, _LONG(1)) if self._is_half else size
        with cgutils.for_range(builder, count) as loop:
            vectors = columns(loop.index)
            for row in self._rows:
                given = load(self._builder, builder.gep(rows[row], [loop.index]), 2 if self._is_half else 4)
                given = spread(self._builder, given)
                for vector, column in zip(self._vectors, vectors, strict=True):
                    place = self._total[row][vector]
                    total = builder.load(place)
                    arguments = [total, given, column] if self._is_half else [given, column, total]
                    builder.store(builder.call(pairs if self._is_half else fused, arguments), place)

    def laid(self, weights):
        """Columns that lie one input, or pair of them, behind the other."""
        weights = self._builder.bitcast(weights, _BYTE.as_pointer())
        kind = _INTS if self._is_half else _FLOATS

        def columns(index):
            line = self._builder.mul(index, _LONG(4 * LANES * len(self._vectors)))
            starts = [self._builder.add(line, _LONG(4 * LANES * vector)) for vector in self._vectors]
            return [load_as(self._builder, self._builder.gep(weights, [start]), kind, 4) for start in starts]

        return columns

    def fetching(self, columns, source, soon, shift):
        """The same columns, and lines are fetched."""
        builder = self._builder

        def also(index):
            for i in range(WIDTH // LANES):
                line = builder.add(builder.mul(index, _LONG(WIDTH // LANES)), _LONG(i))
                key = builder.lshr(line, shift)
                more = builder.mul(builder.sub(line, builder.shl(key, shift)), _LONG(self._per_line))
                last = builder.icmp_signed("<", key, _LONG(WIDTH))
                place = builder.load(builder.gep(soon, [builder.select(last, key, _LONG(WIDTH - 1))]))
                prefetch(builder, builder.gep(source, [builder.add(place, more)]))
            return columns(index)

        return also

    def placed(self, weights, places, soon):
        """Columns that lie where ``places`` say."""
        builder = self._builder

        def lines(where, index):
            if not self._is_half:
                return [builder.load(builder.gep(where, [index]))]
            first = builder.shl(index, _LONG(1))
            return [builder.load(builder.gep(where, [builder.add(first, _LONG(i))])) for i in range(2)]

        def columns(index):
            for line in lines(soon, index):
                for number in range(0, LANES * len(self._vectors), self._per_line):
                    prefetch(builder, builder.gep(weights, [builder.add(line, _LONG(number))]))
            found = lines(places, index)
            return [self._column(weights, found, _LONG(LANES * vector)) for vector in self._vectors]

        return columns

    def _column(self, weights, lines, number):
        builder, kind = self._builder, _SHORTS if self._is_half else _FLOATS
        alignment = 2 if self._is_half else 4
        found = [load_as(builder, builder.gep(weights, [builder.add(line, number)]), kind, alignment) for line in lines]
        return paired(builder, *found) if self._is_half else found[0]

    def _each(self, initial):
        for row in self._rows:
            for vector in self._vectors:
                self._builder.store(initial(row, vector), self._total[row][vector])

    def _sum(self, row, vector):
        index = self._builder.add(self._times(row, self._by_sum), _LONG(LANES * vector))
        return self._builder.bitcast(self._builder.gep(self._sums, [index]), _FLOATS.as_pointer())

    def _times(self, row, distance):
        return self._builder.mul(_LONG(row), distance)


def load(builder, address, alignment):
    """What is at an address that is a multiple of ``alignment`` bytes."""
    loaded = builder.load(address)
    loaded.align = alignment
    return loaded


def load_as(builder, address, kind, alignment):
    """A value of another type there."""
    return load(builder, builder.bitcast(address, kind.as_pointer()), alignment)


def _number(builder, start):
    """The float32 of the vector of numbers from ``start`` on."""
    if start.type.pointee != _SHORT:
        return load_as(builder, start, _FLOATS, 4)
    bits = builder.zext(load_as(builder, start, _SHORTS, 2), _INTS)
    return builder.bitcast(builder.shl(bits, _all(16)), _FLOATS)


def sum_of(builder, vector):
    """The sum of a vector: halves are added until one number is left."""
    size = LANES // 2
    while size:
        lanes = [ir.Constant(ir.VectorType(_INT, size), list(range(first, first + size))) for first in (0, size)]
        halves = [builder.shuffle_vector(vector, vector, some) for some in lanes]
        vector, size = builder.fadd(*halves), size // 2
    return builder.extract_element(vector, _INT(0))


def _store(builder, numbers, target):
    """Store a vector where ``target`` points to: as bfloat16 the nearest ones, see ``numbers.write``."""
    is_half = target.type.pointee == _SHORT
    if is_half:
        bits = builder.bitcast(numbers, _INTS)
        odd = builder.and_(builder.lshr(bits, _all(16)), _all(1))
        bits = builder.add(builder.add(bits, _all(0x7FFF)), odd)
        numbers = builder.trunc(builder.lshr(bits, _all(16)), _SHORTS)
    address = builder.bitcast(target, (_SHORTS if is_half else _FLOATS).as_pointer())
    builder.store(numbers, address).align = 2 if is_half else 4


def spread(builder, number):
    """A vector of one number."""
    kind = ir.VectorType(number.type, LANES)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), number, _INT(0))
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def paired(builder, first, second):
    """Words of a bfloat16 of the first vector, and one of the second."""
    lanes = [lane for low in range(LANES) for lane in (low, LANES + low)]
    both = builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_INT, 2 * LANES), lanes))
    return builder.bitcast(both, _INTS)


def _is_set(builder, flag):
    return builder.icmp_signed("!=", flag, _LONG(0))


def _all(number):
    return ir.Constant(_INTS, [number] * LANES)
