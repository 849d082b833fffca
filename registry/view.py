"""Which workers a watcher believes to be alive, without I/O. Time is the watcher's monotonic clock in ms, passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.worker import WorkerStatus
    from registry.announcement import Announcement


@dataclass
class _Entry:
    status: WorkerStatus
    ttl_ms: int
    until_ms: int


class RegistryView:
    """Fed with announcements as they come, and with everything that the registry holds from time to time."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __repr__(self) -> str:
        return f"<RegistryView {sorted(self._entries)}>"

    def apply(self, announcement: Announcement, now_ms: int) -> None:
        """A worker is there for its ttl from now on, or has gone."""
        if announcement.status is None:
            self._entries.pop(announcement.worker_id, None)
        else:
            until_ms = now_ms + announcement.ttl_ms
            self._entries[announcement.worker_id] = _Entry(announcement.status, announcement.ttl_ms, until_ms)

    def merge(self, announcements: Iterable[tuple[Announcement, int]], now_ms: int) -> None:
        """What the registry holds, each with the time left of it in ms. Who is overdue and not among it is gone.

        Who is missing but not overdue stays: its announcement may have been heard and not yet read back, or the
        registry came back empty and the worker will announce itself within its ttl.
        """
        for announcement, left_ms in announcements:
            self.apply(announcement, now_ms)
            if announcement.status is not None:
                self._entries[announcement.worker_id].until_ms = now_ms + left_ms
        self._entries = {key: entry for key, entry in self._entries.items() if entry.until_ms > now_ms}

    def be_patient(self, now_ms: int) -> None:
        """The registry was away and nobody could announce anything: everybody gets a whole ttl from now on."""
        for entry in self._entries.values():
            entry.until_ms = now_ms + entry.ttl_ms

    def alive(self) -> list[WorkerStatus]:
        """All workers, in the order of their ids."""
        return [self._entries[key].status for key in sorted(self._entries)]

    def next_expiry_ms(self) -> int | None:
        """When the first worker is overdue: time to ask the registry about it. None without workers."""
        return min((entry.until_ms for entry in self._entries.values()), default=None)
