"""What the agent was told and has not answered, without I/O. All times are of one clock in ms, passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.vllm.leases.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Hashable

#: ms between the first look that finds an answer overdue and the second. If this router itself was held up, the answer
#: is there already, and has only to be read.
SURE_MS = 2000


class Unreported:
    """Answers that are waited for, each with a time at which it is overdue."""

    def __init__(self) -> None:
        self._due = Deadlines["Hashable"]()
        #: The answer that was found overdue, and when.
        self._overdue: tuple[Hashable, int] | None = None

    def add(self, what: Hashable, due_ms: int) -> None:
        """Note that the agent has to answer this, and hangs if it has not by ``due_ms``."""
        self._due[what] = due_ms

    def discard(self, what: Hashable) -> None:
        """Note that this is answered."""
        self._due.drop(what)

    def clear(self) -> None:
        """Note that nothing will be answered any more, because the agent has ended."""
        self._due.clear()

    def hangs(self, now_ms: int) -> bool:
        """Look whether the agent hangs: the first answer is overdue, and was at a look ``SURE_MS`` ago."""
        first = self._due.first()
        if first is None or now_ms < self._due[first]:
            return False
        if self._overdue is None or self._overdue[0] != first:
            self._overdue = first, now_ms
        return now_ms >= self._overdue[1] + SURE_MS

    def next_ms(self) -> int | None:
        """When to look next; None: not before something is added."""
        first = self._due.first()
        if first is None:
            return None
        if self._overdue is not None and self._overdue[0] == first:
            return self._overdue[1] + SURE_MS
        return self._due[first]
