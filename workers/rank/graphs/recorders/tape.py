"""What a step on a CPU calls: torch's operations and native programs, with the tensors that go from one to another."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from baton_serve.workers.rank.graphs.port import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton_serve.workers.rank.native.program import Program


class Made(NamedTuple):
    """The tensor of this number, which a call makes."""

    number: int


class View(NamedTuple):
    """A view of a made tensor."""

    number: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class _Whole(NamedTuple):
    """The first tensor of a storage: what has to be known of it once it is gone. ``weak``: keeps the storage's key."""

    number: int
    dtype: torch.dtype
    place: tuple[tuple[int, ...], tuple[int, ...], int]
    address: int
    weak: StorageWeakRef


class Address(NamedTuple):
    """So many bytes behind the start of a made tensor."""

    number: int
    num_bytes: int


@dataclass(frozen=True)
class Call:
    """A call of ``function``. In its arguments, also in lists, are ``Made``, ``View``, ``Address`` and constants.

    ``results``: the numbers of the tensors that it makes; None for a result that is no new tensor.
    ``is_single``: it returns its only result, not a tuple.
    ``has_effect``: it does more than to make tensors.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: Sequence[int | None]
    is_single: bool
    has_effect: bool


#: What an operation is called whose result, or the size of it, depends on the numbers in a tensor.
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the calls of what runs inside it, if ``add_program`` is told of the native programs.

    Tensors that were there before are constants, with whatever is in them when the calls are repeated. Views are no
    calls: what is a view of a constant is one, and others are told by the ``View`` that they are.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        #: By storage.
        self._made: dict[int, _Whole] = {}
        #: The memory of these storages in ascending order: first address, the one behind the last, storage. Memory that
        #: was given back belongs to the storage that had it last.
        self._memory: list[tuple[int, int, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note it. Raises RecordError if the same call would not do for other numbers."""
        kwargs = kwargs or {}
        if not _WAITING.isdisjoint(func.tags):
            raise RecordError(f"the result of {func} depends on the numbers in a tensor")
        given = tree_leaves((args, kwargs))
        if any(isinstance(one, torch.UntypedStorage) for one in given):
            raise RecordError(f"{func} is given memory")
        # Before the call: it may give back what it is given.
        operands, named = tree_map_only(torch.Tensor, self._operand, (args, kwargs))
        taken = {_storage(one) for one in given if isinstance(one, torch.Tensor)}
        found = func(*args, **kwargs)
        is_single = not isinstance(found, list | tuple)
        results = [found] if is_single else found
        if not all(result is None or isinstance(result, torch.Tensor) for result in results):
            raise RecordError(f"{func} returns what is no tensor")
        numbers = [None if result is None else self._number(result, taken) for result in results]
        has_effect = func._schema.is_mutable or not any(isinstance(result, torch.Tensor) for result in results)
        if has_effect or any(number is not None for number in numbers):
            # What an operation calls in the end: one call of Python less.
            self.calls.append(Call(func._op, operands, named, numbers, is_single, has_effect))
        return found

    def add_program(self, program: Program, numbers: Sequence[float]) -> None:
        """Note a call of a native program."""
        operands = [
            self._address(int(number)) if kind == "address" else number
            for kind, number in zip(program.kinds, numbers, strict=True)
        ]
        self.calls.append(Call(program.function, operands, {}, [], is_single=False, has_effect=True))

    def _number(self, result: torch.Tensor, taken: set[int]) -> int | None:
        """The number of a tensor if this is the first one in its memory."""
        key = _storage(result)
        if key in taken or key in self._made:
            return None
        storage = result.untyped_storage()
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        whole = _Whole(len(self._made), result.dtype, _place(result), result.data_ptr(), weak)
        self._made[key] = whole
        if storage.nbytes():
            self._place_memory(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), key)
        return whole.number

    def _place_memory(self, start: int, end: int, key: int) -> None:
        first = bisect_right(self._memory, start, key=lambda memory: memory[1])
        last = first
        while last < len(self._memory) and self._memory[last][0] < end:
            last += 1
        self._memory[first:last] = [(start, end, key)]

    def _operand(self, tensor: torch.Tensor) -> object:
        whole = self._made.get(_storage(tensor))
        if whole is None:
            return tensor
        if tensor.dtype != whole.dtype or tensor.is_conj() or tensor.is_neg():
            raise RecordError(f"there is a view as {tensor.dtype} of what is {whole.dtype}")
        place = _place(tensor)
        return Made(whole.number) if place == whole.place else View(whole.number, *place)

    def _address(self, address: int) -> object:
        index = bisect_right(self._memory, address, key=lambda memory: memory[0]) - 1
        if index >= 0 and address < self._memory[index][1]:
            whole = self._made[self._memory[index][2]]
            return Address(whole.number, address - whole.address)
        return address


def _storage(tensor: torch.Tensor) -> int:
    """What is the same for tensors in the same memory."""
    if tensor.layout is not torch.strided:  # weights that are laid out for products
        return id(tensor)
    storage: int = tensor.untyped_storage()._cdata
    return storage


def _place(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
