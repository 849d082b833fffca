"""Counts the reports of the members of a transfer until all have reported. Pure.

A transfer is done when every member has reported success. It has failed as soon as one member reports a failure, but
it has *ended* only when every member has reported: until then its blocks may still be written. Both sides use this: D
waits until its ranks have read, a rank of P waits for the ranks of D that read from it, and P waits until all of its
ranks have been read.

    reports so far                  event of the last report
    not all, none failed            WAITING
    the first failure, not all      FAILED      once; a request that waits for the data may fail over
    further reports, not all        WAITING
    all, none failed                DONE
    all, some failed                ENDED       nothing is written any more

A second report of a member, and a report for a transfer that is not open, are ignored; their event is None.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class GatherEvent(Enum):
    """What a report means for the transfer."""

    WAITING = auto()
    FAILED = auto()
    DONE = auto()
    ENDED = auto()


class _Open:
    """One transfer that has not ended."""

    __slots__ = ("failed", "heard", "num_members")

    def __init__(self, num_members: int) -> None:
        self.num_members = num_members
        self.heard: set[int] = set()
        self.failed = False


class Gather(Generic[K]):
    """Open transfers by key. ``max_open`` bounds them if peers choose the keys: beyond it the oldest is forgotten."""

    def __init__(self, max_open: int | None = None) -> None:
        self._open: dict[K, _Open] = {}
        self._max_open = max_open

    def __len__(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"<Gather {len(self._open)} open>"

    def open(self, key: K, num_members: int) -> None:
        """Expect one report from each of ``num_members``. Does nothing if the key is open already."""
        if key in self._open:
            return
        if self._max_open is not None and len(self._open) >= self._max_open:
            del self._open[next(iter(self._open))]
        self._open[key] = _Open(num_members)

    def report(self, key: K, member: int, *, ok: bool = True) -> GatherEvent | None:
        """Count the report of one member; None if it is ignored. A transfer that ends is forgotten."""
        transfer = self._open.get(key)
        if transfer is None or member in transfer.heard:
            return None
        transfer.heard.add(member)
        is_first_failure = not ok and not transfer.failed
        transfer.failed |= not ok
        if len(transfer.heard) >= transfer.num_members:
            del self._open[key]
            return GatherEvent.ENDED if transfer.failed else GatherEvent.DONE
        return GatherEvent.FAILED if is_first_failure else GatherEvent.WAITING
