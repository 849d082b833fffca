"""Addresses in programs: further on, as those of another type, of room on the stack; and what is fetched from them."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BYTE, _INT, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
#: A line of the processor's cache.
LINE_BYTES = 64


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
                return _room(builder, arguments[0].type.pointee, count)

        return like(like), instruction

    return room


def _room(builder, kind, count):
    """Begins with a line of the processor's cache, so that a vector is never in two."""
    room = builder.alloca(kind, _LONG(count))
    room.align = LINE_BYTES
    return room


def _makes_room(kind, numba_kind):
    """``room_of`` for numbers of one type, of which there is no pointer yet: ``f()``."""

    def room_of_kind(count):
        @intrinsic
        def room(context):
            def instruction(context, builder, signature, arguments):
                with builder.goto_entry_block():
                    return _room(builder, kind, count)

            return types.CPointer(numba_kind)(), instruction

        return room

    return room_of_kind


float_room_of = _makes_room(ir.FloatType(), types.float32)
long_room_of = _makes_room(_LONG, types.int64)


@intrinsic
def as_type_of(context, like, pointer):
    """The same address, as a pointer of the type of ``like``."""

    def instruction(context, builder, signature, arguments):
        return builder.bitcast(arguments[1], arguments[0].type)

    return like(like, pointer), instruction


@intrinsic
def address_at(context, like, number):
    """The address that an int64 of a table is, as a pointer of the type of ``like``."""

    def instruction(context, builder, signature, arguments):
        return builder.inttoptr(arguments[1], arguments[0].type)

    return like(like, number), instruction


def _pointer_to(kind, numba_kind):
    @intrinsic
    def as_pointer(context, pointer):
        def instruction(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], kind.as_pointer())

        return types.CPointer(numba_kind)(pointer), instruction

    return as_pointer


#: ``f(pointer)``: the same address, of int64.
as_longs = _pointer_to(_LONG, types.int64)


@intrinsic
def fetch(context, numbers, index):
    """Have the processor fetch the number at ``index``, and the others of its line, into its cache; waits for nothing.

    Processors see by themselves that numbers are read one after the other, but not across pages of memory, nor from
    one block to the next one of a table.
    """

    def instruction(context, builder, signature, arguments):
        prefetch(builder, builder.gep(arguments[0], [arguments[1]]), NEAREST)
        return context.get_dummy_value()

    return types.void(numbers, types.int64), instruction


#: Caches to fetch into, in LLVM's terms.
NEAREST, SECOND = 3, 2


def prefetch(builder, address, cache):
    """Have the processor fetch the line of this address into this cache; waits for nothing."""
    kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT, _INT, _INT])
    function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE.as_pointer()], kind)
    # To be read, and as data.
    builder.call(function, [builder.bitcast(address, _BYTE.as_pointer()), _INT(0), _INT(cache), _INT(1)])
