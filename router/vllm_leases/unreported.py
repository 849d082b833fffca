"""What the agent was told to send and has not reported, without I/O. All times are monotonic ms, passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.vllm_leases.book import Batch

#: ms between the first look that finds a report overdue and the second. If this router itself was held up, the report
#: is there already, and has only to be read.
SURE_MS = 2000


class Unreported:
    """Batches by number, the oldest first."""

    def __init__(self, limit_ms: int) -> None:
        """``limit_ms``: the agent hangs if it has not reported a batch after so long."""
        self._limit_ms = limit_ms
        self._batches: dict[int, Batch] = {}
        self._num_batches = 0
        #: The batch that was found overdue, and when.
        self._overdue: tuple[int, int] | None = None

    def add(self, batch: Batch) -> int:
        """Note that the agent is told to send this; returns its number."""
        self._num_batches += 1
        self._batches[self._num_batches] = batch
        return self._num_batches

    def pop(self, number: int) -> Batch:
        """The batch that is reported now."""
        return self._batches.pop(number)

    def pop_all(self) -> list[Batch]:
        """The batches that nobody will report, because the agent has ended."""
        batches = list(self._batches.values())
        self._batches.clear()
        return batches

    def hangs(self, now_ms: int) -> bool:
        """Look whether the agent hangs: the oldest batch is overdue, and was at a look ``SURE_MS`` ago."""
        due_ms = self._due_ms()
        if due_ms is None or now_ms < due_ms:
            return False
        oldest = next(iter(self._batches))
        if self._overdue is None or self._overdue[0] != oldest:
            self._overdue = oldest, now_ms
        return now_ms >= self._overdue[1] + SURE_MS

    def next_ms(self) -> int | None:
        """When to look next; None: not before another batch."""
        oldest = next(iter(self._batches), None)
        if self._overdue is not None and self._overdue[0] == oldest:
            return self._overdue[1] + SURE_MS
        return self._due_ms()

    def _due_ms(self) -> int | None:
        oldest = next(iter(self._batches.values()), None)
        return None if oldest is None else oldest.began_ms + self._limit_ms
