"""Which processes a watcher of the registry believes to be alive, without I/O.

Time is the watcher's monotonic clock in ms, passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

from baton_serve.core.registry.announcement import Announcement, EntryT

#: Processes remembered at most: more than there are in any deployment. Any program that may publish could announce
#: more.
MAX_KNOWN = 10_000


@dataclass
class _Known(Generic[EntryT]):
    entry: EntryT
    ttl_ms: int
    sequence: int
    until_ms: int


class RegistryView(Generic[EntryT]):
    """The processes known from announcements (``apply``) and from reading the whole registry (``merge``)."""

    def __init__(self) -> None:
        self._known: dict[str, _Known[EntryT]] = {}
        #: By id, the last sequence number of processes that left, the oldest first: an older announcement of such a
        #: process must not bring it back.
        self._left: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<RegistryView {sorted(self._known)}>"

    def apply(self, announcement: Announcement[EntryT], now_ms: int) -> EntryT | None:
        """Take one announcement: the process is alive for its ttl from now on, or has left. Returns the last entry of a
        process that leaves by it.

        A numbered announcement that is not newer than the last one of the process is ignored: any program with access
        to Redis may have written it again.
        """
        known = self._known.get(announcement.id)
        last = self._left.get(announcement.id, 0) if known is None else known.sequence
        if 0 < announcement.sequence <= last:
            return None
        if announcement.entry is None:
            self._known.pop(announcement.id, None)
            self._remember_left(announcement.id, announcement.sequence)
            return None if known is None else known.entry
        if known is not None or len(self._known) < MAX_KNOWN:
            until_ms = now_ms + announcement.ttl_ms
            self._known[announcement.id] = _Known(
                announcement.entry, announcement.ttl_ms, announcement.sequence, until_ms
            )
            self._left.pop(announcement.id, None)
        return None

    def merge(self, announcements: Iterable[tuple[Announcement[EntryT], int]], now_ms: int) -> None:
        """Take everything that the registry holds, each with its remaining time in ms, and forget overdue processes.

        A process that is missing but not overdue stays: its announcement may have come after the registry was read, or
        the registry came back empty and the process will announce itself within its ttl.
        """
        for announcement, left_ms in announcements:
            self.apply(announcement, now_ms)
            known = self._known.get(announcement.id)
            if announcement.entry is not None and known is not None and known.sequence == announcement.sequence:
                known.until_ms = min(known.until_ms, now_ms + left_ms)
        for key in [key for key, known in self._known.items() if known.until_ms <= now_ms]:
            self._remember_left(key, self._known.pop(key).sequence)

    def _remember_left(self, key: str, sequence: int) -> None:
        if not sequence:
            return
        self._left.pop(key, None)
        self._left[key] = sequence
        if len(self._left) > MAX_KNOWN:
            del self._left[next(iter(self._left))]

    def restart_ttls(self, now_ms: int) -> None:
        """Give every process a whole ttl from now on: it could not announce itself during the outage."""
        for known in self._known.values():
            known.until_ms = now_ms + known.ttl_ms

    def alive(self) -> list[EntryT]:
        """The entries of all processes believed alive, ordered by id."""
        return [self._known[key].entry for key in sorted(self._known)]

    def next_expiry_ms(self) -> int | None:
        """The time when the first process is overdue and the registry should be read; None if there is no process."""
        return min((known.until_ms for known in self._known.values()), default=None)
