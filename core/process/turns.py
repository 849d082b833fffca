"""Few of many things in each turn of the event loop, so that what else is due comes between them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Turns:
    """Call ``take`` for each thing, while ``left`` is not 0. Use it from one event loop.

    ``begin`` is called in the turn after each one in which something was taken, when ``left`` is full again.
    """

    def __init__(self, most: int, begin: Callable[[], None]) -> None:
        self._most = most
        self._begin = begin
        #: How many more may be taken in this turn of the loop.
        self.left = most

    def take(self) -> None:
        """One more in this turn."""
        if self.left == self._most:
            asyncio.get_running_loop().call_soon(self._next)
        self.left -= 1

    def _next(self) -> None:
        self.left = self._most
        self._begin()
