"""Sequences in the order of their urgency."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from baton_serve.workers.engine.sequences.sequence import Sequence

_KEY = attrgetter("key")


class ByUrgency:
    """Sorted by ``Sequence.key``, which is unique. Keeps no reference to a sequence that was removed.

    Insertion and removal move at most ``EngineConfig.max_waiting`` list entries plus one for each preempted sequence,
    which costs less than anything else that a request needs.
    """

    def __init__(self) -> None:
        self._seqs: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[Sequence]:
        """All sequences, most urgent first, as they are now: the list may change meanwhile."""
        return iter(self._seqs[:])

    def __contains__(self, seq: Sequence) -> bool:
        return self._index(seq) is not None

    def _index(self, seq: Sequence) -> int | None:
        index = bisect_left(self._seqs, seq.key, key=_KEY)
        return index if index < len(self._seqs) and self._seqs[index] is seq else None

    @property
    def first(self) -> Sequence | None:
        """The most urgent sequence; None if there is none."""
        return self._seqs[0] if self._seqs else None

    @property
    def last(self) -> Sequence:
        """The least urgent sequence. There must be one."""
        return self._seqs[-1]

    def add(self, seq: Sequence) -> None:
        insort(self._seqs, seq, key=_KEY)

    def discard(self, seq: Sequence) -> None:
        index = self._index(seq)
        if index is not None:
            del self._seqs[index]
