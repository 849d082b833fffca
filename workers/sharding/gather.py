"""Counts what the ranks of a group report, for any number of ranks and whoever moves the bytes. Pure.

A transfer is done when every member says so. It has failed as soon as one member says so, but it has *ended* only
when every member has: until then somebody may still write into its blocks. Both ends count this way. D waits for its
own ranks to have read; P's rank waits for the ranks of D that read from it, and P for its own ranks to have been read.

    heard so far                    verdict of the report that makes it so
    not all, none failed            WAITING
    the first failure, not all      FAILED      told once; whoever waits for the data may go elsewhere
    further reports, not all        WAITING
    all, none failed                DONE
    all, some failed                ENDED       nothing is written any more

Reports from a member that has reported, and those for a transfer that is not open (any more), are absorbed: None.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Verdict(Enum):
    """What a report has changed."""

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
    """Transfers by key. ``max_open``: beyond it the oldest is forgotten, for keys that strangers choose."""

    def __init__(self, max_open: int | None = None) -> None:
        self._open: dict[K, _Open] = {}
        self._max_open = max_open

    def __len__(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"<Gather {len(self._open)} open>"

    def open(self, key: K, num_members: int) -> None:
        """Expect one report from each of ``num_members``. Nothing happens if the key is open already.

        Raises ValueError for less than one.
        """
        if num_members < 1:
            raise ValueError(f"a transfer needs a member, got {num_members}")
        if key in self._open:
            return
        if self._max_open is not None and len(self._open) >= self._max_open:
            del self._open[next(iter(self._open))]
        self._open[key] = _Open(num_members)

    def report(self, key: K, member: int, *, ok: bool = True) -> Verdict | None:
        """One member's part has ended, well or not; None if that is no news. A transfer that ends is forgotten."""
        transfer = self._open.get(key)
        if transfer is None or member in transfer.heard:
            return None
        transfer.heard.add(member)
        is_first_failure = not ok and not transfer.failed
        transfer.failed |= not ok
        if len(transfer.heard) >= transfer.num_members:
            del self._open[key]
            return Verdict.ENDED if transfer.failed else Verdict.DONE
        return Verdict.FAILED if is_first_failure else Verdict.WAITING

    def lose(self, member: int) -> list[tuple[K, Verdict]]:
        """The member is gone and writes nothing any more: its part of every open transfer has failed."""
        verdicts = [(key, self.report(key, member, ok=False)) for key in list(self._open)]
        return [(key, verdict) for key, verdict in verdicts if verdict is not None]

    def forget(self, key: K) -> None:
        """Nobody wants to know any more; reports that come later are absorbed."""
        self._open.pop(key, None)
