"""Torch's threads compute parts of a program."""

from __future__ import annotations

from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_BYTES, _INT, _LONG = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)


def has_team() -> bool:
    """Whether torch's threads can be had: GNU's OpenMP, or one that has its functions as well."""
    names = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
    return all(binding.address_of_symbol(name) for name in names)


@njit(inline="always")
def team_for(threads, work, least):
    """How many of torch's ``threads`` to take: one if there is less than ``least`` to do, whatever it is counted in."""
    return threads if work >= least else 1


@intrinsic
def as_team(context, function, threads, arguments):
    """Have torch's threads call ``function(place, size, *arguments)``, which Numba compiles; ``arguments`` is a tuple.

    ``place`` says which thread of how many this is, from 0 on. Waits until all have returned. ``threads`` should be
    what torch has: OpenMP ends threads for a smaller team, and starts new ones for a larger one. It may give fewer.
    With one thread, or where torch's threads cannot be had, the caller's computes it all.
    """
    called = function.get_call_type(context, (types.int64, types.int64, *arguments.types), {})
    found = function.dispatcher.overloads[called.args]

    def instructions(context, builder, signature, values):
        _, count, given = values
        context.add_linking_libs([found.library])
        if has_team():
            with builder.if_else(builder.icmp_signed("<", count, _LONG(2))) as (alone, together):
                with alone:
                    _call(context, builder, called, found, [_LONG(0), _LONG(1)], given)
                with together:
                    _start(context, builder, called, found, count, given)
        else:
            _call(context, builder, called, found, [_LONG(0), _LONG(1)], given)
        return context.get_dummy_value()

    return types.void(function, threads, arguments), instructions


def _call(context, builder, called, found, place, given):
    """Call the function with the place, and the tuple of its other arguments."""
    arguments = [*place, *cgutils.unpack_tuple(builder, given, len(called.args) - len(place))]
    # No function of this package raises.
    context.call_internal_no_propagate(builder, found.fndesc, called, arguments)


def _start(context, builder, called, found, count, given):
    """Have OpenMP's threads call the function."""
    place = cgutils.alloca_once(builder, given.type)
    builder.store(given, place)
    body = _body(context, builder.module, given.type, called, found)
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, _BYTES, _INT, _INT])
    parallel = cgutils.get_or_insert_function(builder.module, kind, "GOMP_parallel")
    numbers = [builder.bitcast(one, _BYTES) for one in (body, place)]
    builder.call(parallel, [*numbers, builder.trunc(count, _INT), _INT(0)])


def _body(context, module, kind, called, found):
    """What OpenMP calls: takes the address of the arguments, and calls the function with them."""
    asked = ir.FunctionType(_INT, [])
    asks = [cgutils.get_or_insert_function(module, asked, f"omp_get_{what}") for what in ("thread_num", "num_threads")]
    name = module.get_unique_name(f"team_{found.fndesc.mangled_name}")
    body = ir.Function(module, ir.FunctionType(ir.VoidType(), [_BYTES]), name)
    body.linkage = "internal"
    builder = ir.IRBuilder(body.append_basic_block())
    given = builder.load(builder.bitcast(body.args[0], kind.as_pointer()))
    _call(context, builder, called, found, [builder.sext(builder.call(ask, []), _LONG) for ask in asks], given)
    builder.ret_void()
    return body


@intrinsic
def wait_for_team(context):
    """Wait until all threads of ``as_team`` have come here."""

    def instruction(context, builder, signature, arguments):
        barrier = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "GOMP_barrier")
        builder.call(barrier, [])
        return context.get_dummy_value()

    return types.void(), instruction
