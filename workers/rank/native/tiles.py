"""Parts of a product that stay in the processor's registers.

What Numba makes of a loop over numbers leaves sums in memory. So these are written in LLVM's own terms, for vectors of
16 float32; LLVM makes of them what the processor has.

Two bfloat16 lie side by side, as one word. Where ``processor.multiplies_pairs``, two words are multiplied as they are.
Elsewhere, and by inputs that are float32, the two of a word are made float32, and multiplied one after the other.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from baton_serve.workers.rank.native.addresses import NEAREST, SECOND, prefetch
from baton_serve.workers.rank.native.processor import is_of_intel, multiplies_pairs

#: Float32 of a vector; and outputs and rows of the tile that is used most.
LANES, WIDTH = 16, 64
MAX_ROWS = 4
#: How far ahead of what it multiplies a processor is told to fetch weights; 0: not at all. Those of Intel read them 1.2
#: times as fast then (4 to 16 rows, Emerald Rapids); those of AMD know better by themselves (Zen 5).
FETCH_AHEAD_BYTES = 8192 if is_of_intel() else 0

_BYTE, _SHORT, _INT, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(_INT, LANES)
_SHORTS = ir.VectorType(_SHORT, LANES)
#: Of a word, the bfloat16 that comes second.
_UPPER = 0xFFFF0000


def tile_of(num_rows, num_vectors):
    """``f(inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, ahead_bytes, is_first, is_last)``:
    adds to ``sums`` the products of ``size`` inputs of each row and the columns of ``weights``, one input after the
    other.

    There are ``num_vectors * LANES`` columns. Weights lie as in a block of ``weights.laid_out``. At first there are no
    sums yet; at last they, and the bias, are the outputs, and are not kept. Distances count numbers. The processor
    fetches the weights that are ``ahead_bytes`` behind those that it multiplies; none if it is 0.
    """

    @intrinsic
    def tile(
        context, inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, ahead_bytes, is_first, is_last
    ):
        def instructions(context, builder, signature, arguments):
            inputs_, weights_, bias_, outputs_, sums_, size_, by_input_, by_output_, by_sum_ = arguments[:9]
            ahead_bytes_, first, last = arguments[9:]
            rows = _Rows(builder, num_rows, num_vectors, inputs_, by_input_, sums_, by_sum_)
            rows.begin(first)
            with builder.if_else(_is_set(builder, ahead_bytes_)) as (fetching, reading):
                with fetching:
                    rows.add(size_, rows.streamed(weights_, ahead_bytes_))
                with reading:
                    rows.add(size_, rows.laid(weights_))
            with builder.if_else(_is_set(builder, last)) as (at_last, before):
                with at_last:
                    rows.put(bias_, outputs_, by_output_)
                with before:
                    rows.keep()
            return context.get_dummy_value()

        signature = types.void(
            inputs, weights, bias, outputs, sums, size, by_input, by_output, by_sum, ahead_bytes, is_first, is_last
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
                factor = floats_from(builder, builder.gep(first, [builder.add(index, _LONG(LANES * vector))]))
                builder.store(builder.call(fused, [factor, factor, builder.load(total)]), total)
        low, high = (builder.fadd(*map(builder.load, pair)) for pair in (totals[::2], totals[1::2]))
        return sum_of(builder, builder.fadd(low, high))

    return types.float32(numbers, types.int64), instructions


@intrinsic
def widen(context, weights, floats, lines):
    """Store ``lines`` of ``WIDTH`` words of two bfloat16 as float32, as tiles read them: of each line the first
    numbers, and then the second ones. What lies ``FETCH_AHEAD_BYTES`` further on is fetched.
    """

    def instructions(context, builder, signature, arguments):
        source, target, count = arguments
        source = builder.bitcast(source, _INT.as_pointer())
        with cgutils.for_range_slice(builder, _LONG(0), builder.mul(count, _LONG(WIDTH)), _LONG(WIDTH), _LONG) as each:
            for vector in range(0, WIDTH, LANES):
                place = builder.add(each[0], _LONG(vector))
                address = builder.gep(source, [place])
                if FETCH_AHEAD_BYTES:
                    further = builder.gep(builder.bitcast(address, _BYTE.as_pointer()), [_LONG(FETCH_AHEAD_BYTES)])
                    prefetch(builder, further, SECOND)
                for half, numbers in enumerate(widened(builder, load_as(builder, address, _INTS, 4))):
                    line = builder.add(builder.shl(each[0], _LONG(1)), _LONG(vector + half * WIDTH))
                    where = builder.bitcast(builder.gep(target, [line]), _FLOATS.as_pointer())
                    builder.store(numbers, where).align = 4
        return context.get_dummy_value()

    return types.void(weights, floats, types.int64), instructions


@intrinsic
def widen_inputs(context, inputs, floats, count):
    """Store ``count`` bfloat16, a multiple of ``LANES``, as float32."""

    def instructions(context, builder, signature, arguments):
        source, target, count = arguments
        with cgutils.for_range_slice(builder, _LONG(0), count, _LONG(LANES), _LONG) as (index, _):
            where = builder.bitcast(builder.gep(target, [index]), _FLOATS.as_pointer())
            builder.store(floats_from(builder, builder.gep(source, [index])), where).align = 4
        return context.get_dummy_value()

    return types.void(inputs, floats, types.int64), instructions


class _Rows:
    """Writes the instructions for the sums of some rows, of ``num_vectors`` vectors each, which stay in registers.

    What inputs are multiplied with are ``_Columns``.
    """

    def __init__(self, builder, num_rows, num_vectors, inputs, by_input, sums, by_sum):
        self._builder = builder
        self._rows, self._vectors = range(num_rows), range(num_vectors)
        self._inputs, self._by_input = inputs, by_input
        self._are_half = inputs.type.pointee == _SHORT
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
            more = floats_from(self._builder, self._builder.gep(bias, [_LONG(LANES * vector)]))
            for row in self._rows:
                total = self._builder.fadd(self._builder.load(self._total[row][vector]), more)
                place = self._builder.add(self._times(row, by_output), _LONG(LANES * vector))
                _store(self._builder, total, self._builder.gep(outputs, [place]))

    def add(self, size, columns):
        """Go over the inputs, two of them at a time if columns have two in a word."""
        builder = self._builder
        rows = [builder.gep(self._inputs, [self._times(row, self._by_input)]) for row in self._rows]
        count = builder.lshr(size, _LONG(1)) if columns.have_words else size
        with cgutils.for_range(builder, count) as loop:
            vectors = columns.at(loop.index)
            for row in self._rows:
                for given, some in zip(self._given(rows[row], loop.index, columns), vectors, strict=True):
                    for place, column in zip(self._total[row], some, strict=True):
                        builder.store(_multiplied(builder, given, column, builder.load(place)), place)

    def _given(self, row, index, columns):
        """The inputs of a word, each, or the word, in all lanes of a vector."""
        builder = self._builder
        if not columns.have_words:
            return [spread(builder, load(builder, builder.gep(row, [index]), 4))]
        if self._are_half:
            word = load_as(builder, builder.gep(row, [builder.shl(index, _LONG(1))]), _INT, 2)
            words = spread(builder, word)
            return [words] if columns.are_pairs else widened(builder, words)
        first = builder.shl(index, _LONG(1))
        return [spread(builder, load(builder, builder.gep(row, [builder.add(first, _LONG(i))]), 4)) for i in range(2)]

    def laid(self, weights):
        """Columns that lie one input, or word of two, behind the other."""
        builder = self._builder
        start, columns = builder.bitcast(weights, _BYTE.as_pointer()), self._columns(weights)

        def at(index):
            line = builder.mul(index, _LONG(4 * LANES * len(self._vectors)))
            starts = [builder.add(line, _LONG(4 * LANES * vector)) for vector in self._vectors]
            kind = _INTS if columns.have_words else _FLOATS
            found = [load_as(builder, builder.gep(start, [one]), kind, 4) for one in starts]
            if columns.are_pairs or not columns.have_words:
                return [found]
            return list(zip(*(widened(builder, one) for one in found), strict=True))

        return columns.with_at(at)

    def streamed(self, weights, ahead_bytes):
        """The same, and the weights that are ``ahead_bytes`` further on are fetched."""
        builder, columns = self._builder, self.laid(weights)
        start = builder.gep(builder.bitcast(weights, _BYTE.as_pointer()), [ahead_bytes])

        def at(index):
            line = builder.mul(index, _LONG(4 * LANES * len(self._vectors)))
            for vector in self._vectors:
                prefetch(builder, builder.gep(start, [builder.add(line, _LONG(4 * LANES * vector))]), SECOND)
            return columns.at(index)

        return columns.with_at(at)

    def fetching(self, columns, source, soon, shift):
        """The same columns, and lines are fetched."""
        builder = self._builder
        per_line = _per_line(source)

        def at(index):
            for i in range(WIDTH // LANES):
                line = builder.add(builder.mul(index, _LONG(WIDTH // LANES)), _LONG(i))
                key = builder.lshr(line, shift)
                more = builder.mul(builder.sub(line, builder.shl(key, shift)), _LONG(per_line))
                last = builder.icmp_signed("<", key, _LONG(WIDTH))
                place = builder.load(builder.gep(soon, [builder.select(last, key, _LONG(WIDTH - 1))]))
                prefetch(builder, builder.gep(source, [builder.add(place, more)]), NEAREST)
            return columns.at(index)

        return columns.with_at(at)

    def placed(self, weights, places, soon):
        """Columns that lie where ``places`` say."""
        builder, columns = self._builder, self._columns(weights)

        def lines(where, index):
            if not columns.have_words:
                return [builder.load(builder.gep(where, [index]))]
            first = builder.shl(index, _LONG(1))
            return [builder.load(builder.gep(where, [builder.add(first, _LONG(i))])) for i in range(2)]

        def at(index):
            for line in lines(soon, index):
                for i in range(0, LANES * len(self._vectors), _per_line(weights)):
                    prefetch(builder, builder.gep(weights, [builder.add(line, _LONG(i))]), NEAREST)
            starts = [builder.gep(weights, [line]) for line in lines(places, index)]
            vectors = [[builder.gep(start, [_LONG(LANES * vector)]) for vector in self._vectors] for start in starts]
            if not columns.are_pairs:
                return [[floats_from(builder, one) for one in some] for some in vectors]
            shorts = [[load_as(builder, one, _SHORTS, 2) for one in some] for some in vectors]
            return [[paired(builder, *both) for both in zip(*shorts, strict=True)]]

        return columns.with_at(at)

    def _columns(self, weights):
        are_half = weights.type.pointee == _SHORT
        return _Columns(are_half, are_half and self._are_half and multiplies_pairs())

    def _each(self, initial):
        for row in self._rows:
            for vector in self._vectors:
                self._builder.store(initial(row, vector), self._total[row][vector])

    def _sum(self, row, vector):
        index = self._builder.add(self._times(row, self._by_sum), _LONG(LANES * vector))
        return self._builder.bitcast(self._builder.gep(self._sums, [index]), _FLOATS.as_pointer())

    def _times(self, row, distance):
        return self._builder.mul(_LONG(row), distance)


class _Columns:
    """What inputs are multiplied with. ``have_words``: there are two bfloat16 in a word, so two inputs are next.

    ``at(i)`` has a list of vectors for each of the inputs that are next. If they ``are_pairs``, it has one list, of
    vectors of words, and the two inputs are multiplied at a time, as a word.
    """

    def __init__(self, have_words, are_pairs, at=None):
        self.have_words = have_words
        self.are_pairs = are_pairs
        self.at = at

    def with_at(self, at):
        """The same, at other places, or with something done beside."""
        return _Columns(self.have_words, self.are_pairs, at)


def _multiplied(builder, given, column, total):
    """``total`` and the products of float32, or of words of two bfloat16."""
    if given.type == _FLOATS:
        kind = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _FLOATS])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), [given, column, total]
        )
    kind = ir.FunctionType(_FLOATS, [_FLOATS, _INTS, _INTS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [total, given, column])


def widened(builder, words):
    """The two bfloat16 of each word, as vectors of float32."""
    both = builder.shl(words, _all(16)), builder.and_(words, _all(_UPPER))
    return [builder.bitcast(one, _FLOATS) for one in both]


def _per_line(numbers):
    """Numbers of a line of the processor's cache."""
    return 2 * LANES if numbers.type.pointee == _SHORT else LANES


def load(builder, address, alignment):
    """What is at an address that is a multiple of ``alignment`` bytes."""
    loaded = builder.load(address)
    loaded.align = alignment
    return loaded


def load_as(builder, address, kind, alignment):
    """A value of another type there."""
    return load(builder, builder.bitcast(address, kind.as_pointer()), alignment)


def floats_from(builder, start):
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
