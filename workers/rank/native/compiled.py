"""Compiles programs, and calls them with the addresses of tensors."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

from numba import cfunc, njit, types

from baton_serve.workers.rank.native.processor import multiplies_pairs
from baton_serve.workers.rank.native.program import Program
from baton_serve.workers.rank.native.team import has_team

if TYPE_CHECKING:
    from collections.abc import Callable

#: Floating-point rules that may be broken: sums in another order, and products and sums rounded once. Infinities keep
#: their meaning; what is computed of a NaN is not defined.
_RULES = {"nnan", "reassoc", "contract", "nsz", "arcp"}
#: Decorates functions that programs call: each operation rounds by itself, and in this order. ``numbers.fused`` marks
#: where two round as one. A function without rules of its own would have those of the first program that calls it.
as_written = njit(fastmath={"nnan", "nsz"}, error_model="numpy")
_C_TYPES = {"address": ctypes.c_void_p, "int": ctypes.c_int64, "float": ctypes.c_float}


def compiled(program: Callable[..., None], kinds: str, element: types.Type | None = None, **constants: int) -> Program:
    """The program as a function of C. ``kinds``: its parameters, such as ``elements indices int float``.

    ``elements`` is the address of numbers of the type ``element``, ``floats`` of float32, ``indices`` of int64,
    ``integers`` of int32. ``constants``: globals of the program that have other values for this one; a loop whose
    length is a constant is compiled for this length.
    Python's lock is not held during a call. The machine code is kept in Numba's cache, if there is a folder for it.
    """
    pointers = {"elements": element, "floats": types.float32, "indices": types.int64, "integers": types.int32}
    numba_types, c_kinds = [], []
    for kind in kinds.split():
        if kind in pointers:
            numba_types.append(types.CPointer(pointers[kind]))
            c_kinds.append("address")
        else:
            numba_types.append(types.int64 if kind == "int" else types.float32)
            c_kinds.append(kind)
    named, signature = _named(program, element, constants), types.void(*numba_types)
    try:
        native = cfunc(signature, cache=True, fastmath=_RULES, error_model="numpy")(named)
    except Exception:  # noqa: BLE001
        # A file system that is read-only, a container's, say, or full, or files that were cut off: what these raise has
        # many names. A program that does not compile fails here again.
        native = cfunc(signature, fastmath=_RULES, error_model="numpy")(named)
    function = ctypes.CFUNCTYPE(None, *(_C_TYPES[kind] for kind in c_kinds))(native.address)
    return Program(named.__qualname__, c_kinds, function, native.address, native)


def _version() -> str:
    """Changes with any file of this package."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_VERSION = _version()


def _named(program: Callable[..., None], element: types.Type | None, constants: dict[str, int]) -> FunctionType:
    """The program with its constants, under a name of its own for these, the type and the version of this package.

    Numba's cache goes by the name and by the file of a program. It sees neither globals, nor changes of what the
    program calls, nor whether torch's threads can be had, nor how bfloat16 are multiplied, on which the size of scratch
    depends. And processes that compile one name for two types at the same time may exchange their programs.
    """
    assert isinstance(program, FunctionType)
    named = FunctionType(program.__code__, {**program.__globals__, **constants}, program.__name__)
    words = [program.__name__, str(element), *(f"{name}{number}" for name, number in constants.items()), _VERSION]
    words += ["team"] if has_team() else []
    words += ["pairs"] if multiplies_pairs() else []
    named.__qualname__ = "_".join(words)
    return named
