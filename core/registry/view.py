"""Who a watcher believes to be alive, without I/O. Time is the watcher's monotonic clock in ms, passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from core.registry.announcement import EntryT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.registry.announcement import Announcement

#: Processes remembered: more than there are anywhere. Whoever may publish could announce any number.
MAX_KNOWN = 10_000


@dataclass
class _Known(Generic[EntryT]):
    entry: EntryT
    ttl_ms: int
    sequence: int
    until_ms: int


class RegistryView(Generic[EntryT]):
    """Fed with announcements as they come, and with everything that the registry holds from time to time."""

    def __init__(self) -> None:
        self._known: dict[str, _Known[EntryT]] = {}
        #: The last number of those that went, the oldest first: what they announced before brings nobody back.
        self._gone: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<RegistryView {sorted(self._known)}>"

    def apply(self, announcement: Announcement[EntryT], now_ms: int) -> None:
        """A process is there for its ttl from now on, or has gone.

        A counted announcement that is not newer than what is known of the process says nothing: anybody may have
        written it again.
        """
        known = self._known.get(announcement.id)
        last = self._gone.get(announcement.id, 0) if known is None else known.sequence
        if 0 < announcement.sequence <= last:
            return
        if announcement.entry is None:
            self._known.pop(announcement.id, None)
            self._went(announcement.id, announcement.sequence)
        elif known is not None or len(self._known) < MAX_KNOWN:
            until_ms = now_ms + announcement.ttl_ms
            self._known[announcement.id] = _Known(
                announcement.entry, announcement.ttl_ms, announcement.sequence, until_ms
            )
            self._gone.pop(announcement.id, None)

    def merge(self, announcements: Iterable[tuple[Announcement[EntryT], int]], now_ms: int) -> None:
        """What the registry holds, each with the time left of it in ms. Who is overdue and not among it is gone.

        Who is missing but not overdue stays: its announcement may have been heard and not yet read back, or the
        registry came back empty and the process will announce itself within its ttl.
        """
        for announcement, left_ms in announcements:
            self.apply(announcement, now_ms)
            known = self._known.get(announcement.id)
            if announcement.entry is not None and known is not None and known.sequence == announcement.sequence:
                known.until_ms = min(known.until_ms, now_ms + left_ms)
        for key in [key for key, known in self._known.items() if known.until_ms <= now_ms]:
            self._went(key, self._known.pop(key).sequence)

    def _went(self, key: str, sequence: int) -> None:
        if not sequence:
            return
        self._gone.pop(key, None)
        self._gone[key] = sequence
        if len(self._gone) > MAX_KNOWN:
            del self._gone[next(iter(self._gone))]

    def be_patient(self, now_ms: int) -> None:
        """The registry was away and nobody could announce anything: everybody gets a whole ttl from now on."""
        for known in self._known.values():
            known.until_ms = now_ms + known.ttl_ms

    def alive(self) -> list[EntryT]:
        """All of them, in the order of their ids."""
        return [self._known[key].entry for key in sorted(self._known)]

    def next_expiry_ms(self) -> int | None:
        """When the first is overdue: time to ask the registry about it. None: nobody is there."""
        return min((known.until_ms for known in self._known.values()), default=None)
