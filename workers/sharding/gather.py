"""Counts the reports of the members of a transfer until all have reported. Pure.

A rank of P waits for the ranks of D that read from it, and P waits until all of its ranks have been read.
"""

from __future__ import annotations

from collections.abc import Hashable


class Gather:
    """Transfers by key. Peers choose the keys, so if there are more than ``max_open`` the oldest is forgotten."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        #: How many members a transfer has, and which of them have reported.
        self._open: dict[Hashable, tuple[int, set[int]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def report(self, key: Hashable, member: int, num_members: int) -> bool:
        """Count the report of one of ``num_members``, once; True if all have reported. Then it is forgotten."""
        if key not in self._open and len(self._open) >= self._max_open:
            del self._open[next(iter(self._open))]
        wanted, heard = self._open.setdefault(key, (num_members, set()))
        heard.add(member)
        if len(heard) < wanted:
            return False
        del self._open[key]
        return True
