"""Sequences that wait for room, most urgent first."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_serve.workers.engine.sequences.sequence import Sequence

_KEY = attrgetter("key")


class WaitQueue:
    """Sorted by ``Sequence.key``, which is unique. Keeps no reference to a sequence that was removed.

    Insertion and removal move at most ``EngineConfig.max_waiting`` list entries plus one for each preempted sequence,
    which costs less than anything else that a request needs.
    """

    def __init__(self) -> None:
        self._seqs: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._seqs)

    def __contains__(self, seq: Sequence) -> bool:
        return self._index(seq) is not None

    def _index(self, seq: Sequence) -> int | None:
        index = bisect_left(self._seqs, seq.key, key=_KEY)
        return index if index < len(self._seqs) and self._seqs[index] is seq else None

    def push(self, seq: Sequence) -> None:
        """Queue a sequence that is not queued."""
        insort(self._seqs, seq, key=_KEY)

    def in_order(self) -> list[Sequence]:
        """All sequences, most urgent first; the list stays as it is while the queue changes."""
        return self._seqs[:]

    def peek(self) -> Sequence | None:
        """The most urgent sequence; None if the queue is empty."""
        return self._seqs[0] if self._seqs else None

    def pop(self) -> Sequence:
        """Remove and return the most urgent sequence. The queue must not be empty."""
        return self._seqs.pop(0)

    def discard(self, seq: Sequence) -> None:
        """Remove a sequence; does nothing if it is not queued."""
        index = self._index(seq)
        if index is not None:
            del self._seqs[index]
