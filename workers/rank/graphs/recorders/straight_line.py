"""The calls of a tape as one function of Python, line after line, without a branch or a loop.

All that it calls, and calls it with, are variables. So the interpreter does next to nothing between two calls, where a
model's own code goes through dozens of modules and their attributes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from baton_serve.workers.rank.graphs.recorders.tape import Address, Made, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from baton_serve.workers.rank.graphs.recorders.tape import Call

_NAME = "replay"


def function_of(calls: Sequence[Call]) -> Callable[[], None]:
    """A function that makes these calls again, but for those that only make tensors which no other one takes.

    A tensor is given back after the last call that takes it.
    """
    needed = _needed(calls)
    last_taken = {number: index for index, call in enumerate(needed) for number in _taken(call)}
    writer = _Writer()
    for index, call in enumerate(needed):
        writer.call(call)
        known = sorted({*_taken(call), *_made(call)})
        writer.give_back([number for number in known if last_taken.get(number, index) == index])
    return writer.function()


def _needed(calls: Sequence[Call]) -> list[Call]:
    found: list[Call] = []
    taken: set[int] = set()
    for call in reversed(calls):
        if call.has_effect or not taken.isdisjoint(_made(call)):
            found.append(call)
            taken.update(_taken(call))
    return found[::-1]


def _made(call: Call) -> list[int]:
    return [number for number in call.results if number is not None]


def _taken(call: Call) -> Iterator[int]:
    """The numbers of the tensors that a call is given."""
    waiting: list[Any] = [call.args, list(call.kwargs.values())]
    while waiting:
        operand = waiting.pop()
        if isinstance(operand, Made | View | Address):
            yield operand.number
        elif isinstance(operand, list | tuple):
            waiting.extend(operand)


class _Writer:
    """Writes the text of the function, and keeps the constants that are named in it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._constants: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        #: Variables of the views of a tensor.
        self._views: dict[int, dict[View, str]] = {}

    def call(self, call: Call) -> None:
        arguments = [self._text(operand) for operand in call.args]
        arguments += [f"{name}={self._text(operand)}" for name, operand in call.kwargs.items()]
        line = f"{self._constant(call.function)}({', '.join(arguments)})"
        if _made(call):
            targets = ["_" if number is None else _variable(number) for number in call.results]
            line = f"{targets[0] if call.is_single else '[' + ', '.join(targets) + ']'} = {line}"
        self._lines.append(line)

    def give_back(self, numbers: Sequence[int]) -> None:
        """Forget these tensors and their views."""
        variables = [one for number in numbers for one in (_variable(number), *self._views.pop(number, {}).values())]
        if variables:
            self._lines.append(f"{' = '.join(variables)} = None")

    def function(self) -> Callable[[], None]:
        text = f"def {_NAME}():\n" + "".join(f"    {line}\n" for line in (*self._lines, "return"))
        names = dict(self._constants)
        exec(compile(text, "<recorded step>", "exec"), names)  # the text has been made of numbers and names
        function: Callable[[], None] = names[_NAME]
        return function

    def _text(self, operand: object) -> str:
        match operand:
            case Made():
                return _variable(operand.number)
            case View():
                return self._view(operand)
            case Address():
                return f"{_variable(operand.number)}.data_ptr() + {operand.num_bytes}"
            case list() | tuple():
                return f"[{', '.join(self._text(one) for one in operand)}]"
            case None | bool() | int() | str():
                return repr(operand)
            case float() if math.isfinite(operand):
                return repr(operand)
        return self._constant(operand)

    def _view(self, view: View) -> str:
        variables = self._views.setdefault(view.number, {})
        if view not in variables:
            variables[view] = f"{_variable(view.number)}_{len(variables)}"
            strided = self._constant(torch.ops.aten.as_strided.default._op)
            whole, sizes, strides = _variable(view.number), list(view.sizes), list(view.strides)
            self._lines.append(f"{variables[view]} = {strided}({whole}, {sizes}, {strides}, {view.offset})")
        return variables[view]

    def _constant(self, constant: object) -> str:
        if id(constant) not in self._names:
            name = self._names[id(constant)] = f"c{len(self._names)}"
            self._constants[name] = constant
        return self._names[id(constant)]


def _variable(number: int) -> str:
    return f"t{number}"
