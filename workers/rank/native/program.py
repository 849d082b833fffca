"""A compiled program, and who is told of its calls."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Listener = Callable[["Program", Sequence[int | float]], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


class Program:
    """A function of C that is called with numbers; ``kinds`` says what each of them is: address, int or float."""

    __slots__ = ("_owner", "address", "function", "kinds", "name")

    def __init__(
        self, name: str, kinds: Sequence[str], function: Callable[..., None], address: int, owner: object
    ) -> None:
        """``function`` calls the code at ``address``, which is there as long as its owner."""
        self.name = name
        self.kinds = kinds
        self.function = function
        self.address = address
        self._owner = owner

    def __repr__(self) -> str:
        return f"<Program {self.name}>"

    def __call__(self, *numbers: float) -> None:
        self.function(*numbers)
        listener = _listener.get()
        if listener is not None:
            listener(self, numbers)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell ``listener`` of each call of a program inside the block, once it is over."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
