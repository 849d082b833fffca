"""Sequences that wait for room, most urgent first."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.engine.sequence import Sequence


class WaitQueue:
    """A heap by ``Sequence.key``. Whoever left early stays in the heap, unseen, until it comes to the top."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, seq: Sequence) -> bool:
        return seq.id in self._members

    def push(self, seq: Sequence) -> None:
        """Queue a sequence that is not queued."""
        # Keys stay unique: who comes back (preempted) was popped before, and who was discarded never comes back.
        self._members.add(seq.id)
        heapq.heappush(self._heap, (seq.key, seq))

    def peek(self) -> Sequence | None:
        """The most urgent one."""
        while self._heap:
            seq = self._heap[0][1]
            if seq.id in self._members:
                return seq
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        """Take out what ``peek`` shows; there must be one."""
        self.peek()
        seq = heapq.heappop(self._heap)[1]
        self._members.remove(seq.id)
        return seq

    def discard(self, seq: Sequence) -> None:
        """Take it out for good, wherever it is; nothing happens if it is not queued."""
        self._members.discard(seq.id)
