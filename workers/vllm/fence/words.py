"""The table of one rank: the words of its own hand-offs, and room for the words that it reads from others."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from baton_serve.workers.vllm.fence.promises import NO_WORD, WORD_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from baton_serve.workers.vllm.fence.promises import Told

#: The type of a word in memory, little-endian on every machine.
WORD = np.dtype("<u8")
#: Added to the word of a hand-off that has ended.
ENDED = 1 << WORD_BITS
#: A slot has a word and a stamp.
SLOT_WORDS = 2
SLOT_BYTES = SLOT_WORDS * WORD.itemsize


class Words:
    """``num_slots`` slots that other engines read, then ``num_landings`` slots into which this rank reads theirs.

    A slot is ``[word, stamp]``. The stamp of a hand-off that has ended is the last allocation before its end: a larger
    number on one of its blocks means that another request has taken the block since.

    A store is one aligned 8-byte write, so a remote reader sees the old word or the new one, never a mixture. Stamps
    only grow, and one is stored before the word that says it is there: who reads an older stamp takes a block for
    another's too often, never too rarely. A newer stamp than the word is of would be wrong; a slot lies in one cache
    line, so that it could only be read if the slot began and ended another hand-off between two loads of one line.
    """

    def __init__(self, num_slots: int, num_landings: int) -> None:
        memory = np.full(SLOT_WORDS * (num_slots + num_landings) + 1, NO_WORD, dtype=WORD)
        begin = memory.ctypes.data % SLOT_BYTES // WORD.itemsize
        self.array: NDArray[np.uint64] = memory[begin : begin + memory.size - 1].reshape(-1, SLOT_WORDS)
        self.num_slots = num_slots
        self._slots: dict[str, int] = {}
        self._landings = deque(range(num_slots, num_slots + num_landings))

    @property
    def address(self) -> int:
        """The address of the first slot, which never changes."""
        return int(self.array.ctypes.data)

    def apply(self, told: Told) -> None:
        """Store and overwrite what the scheduler tells at the beginning of a step. Raises IndexError."""
        for request_id in told.dropped:
            if (slot := self._slots.pop(request_id, None)) is not None:
                self.array[slot, 0] = NO_WORD
        for request_id, promise in told.begun.items():
            if not promise.slot < self.num_slots:
                raise IndexError(f"no slot {promise.slot}")
            self.array[promise.slot, 0] = promise.word
            self._slots[request_id] = promise.slot

    def end(self, request_ids: Iterable[str], stamp: int) -> None:
        """Overwrite the words of hand-offs that end on this rank, before the scheduler is told of it.

        ``stamp``: the last allocation that this rank knows. None of the hand-offs' blocks was taken by a later one,
        since the scheduler keeps them until it is told. Does nothing for a request without a promise.
        """
        for request_id in request_ids:
            if (slot := self._slots.pop(request_id, None)) is not None:
                self.array[slot, 1] = stamp
                self.array[slot, 0] |= np.uint64(ENDED)

    def take_landings(self, number: int) -> list[int] | None:
        """Places for this many slots, empty; None when there are not enough."""
        if number > len(self._landings):
            return None
        taken = [self._landings.popleft() for _ in range(number)]
        self.array[taken] = NO_WORD
        return taken

    def free_landings(self, landings: Iterable[int]) -> None:
        """Nothing is read into these any more."""
        self._landings.extend(landings)
