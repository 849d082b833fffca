"""What the agent was told and has not answered, without I/O. All times are of one clock in ms, passed in."""

from __future__ import annotations

from collections import deque

#: ms between the first look that finds an answer overdue and the second. If this router itself was held up, the answer
#: is there already, and has only to be read.
SURE_MS = 2000


class Unanswered:
    """When each answer that is waited for is overdue, in the order in which the answers will come."""

    def __init__(self) -> None:
        self._due_ms: deque[int] = deque()
        #: When the first of them was found overdue.
        self._overdue_ms: int | None = None

    def add(self, due_ms: int) -> None:
        """Note that the agent has been asked, and hangs if it has not answered by ``due_ms``."""
        self._due_ms.append(due_ms)

    def answered(self) -> None:
        """Note the next answer. After ``clear`` there may still come some that were under way."""
        if self._due_ms:
            self._due_ms.popleft()
        self._overdue_ms = None

    def clear(self) -> None:
        """Note that nothing will be answered any more, because the agent has ended."""
        self._due_ms.clear()
        self._overdue_ms = None

    def hangs(self, now_ms: int) -> bool:
        """Look whether the agent hangs: the first answer is overdue, and was at a look ``SURE_MS`` ago."""
        if not self._due_ms or now_ms < self._due_ms[0]:
            return False
        if self._overdue_ms is None:
            self._overdue_ms = now_ms
        return now_ms >= self._overdue_ms + SURE_MS

    def next_ms(self) -> int | None:
        """When to look next; None: not before something is added."""
        if self._overdue_ms is not None:
            return self._overdue_ms + SURE_MS
        return self._due_ms[0] if self._due_ms else None
