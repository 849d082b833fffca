"""What is written into the registry and published, several times a second. JSON, so that people can read it.

There are two kinds: workers announce who they are and how busy, routers who they are. All else is the same for both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Generic, Protocol, TypeVar, cast

import msgspec

from protocol.router import RouterRecord
from protocol.worker import WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Callable

#: No colon, no wildcard: an id can neither leave its place in a key nor match another.
_VALID_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")

#: A day: a process whose death would show only later than that is a mistake.
MAX_TTL_MS = 86_400_000

Ttl = Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_MS)]
#: What is announced of one process.
EntryT = TypeVar("EntryT")
_EntryT_co = TypeVar("_EntryT_co", covariant=True)


class Announcement(Protocol[_EntryT_co]):
    """The process is there for ``ttl_ms`` more; without ``entry`` it has gone."""

    @property
    def id(self) -> str:
        """Of the process."""

    @property
    def ttl_ms(self) -> int:
        """How long it holds."""

    @property
    def entry(self) -> _EntryT_co | None:
        """What is announced."""


class WorkerAnnouncement(msgspec.Struct, kw_only=True, frozen=True):
    """A worker's."""

    id: str = msgspec.field(name="worker_id")
    ttl_ms: Ttl = 0
    entry: WorkerStatus | None = msgspec.field(name="status", default=None)


class RouterAnnouncement(msgspec.Struct, kw_only=True, frozen=True):
    """A router's."""

    id: str = msgspec.field(name="router_id")
    ttl_ms: Ttl = 0
    entry: RouterRecord | None = msgspec.field(name="record", default=None)


class NotAnAnnouncementError(Exception):
    """Somebody else wrote this."""


@dataclass(frozen=True)
class Kind(Generic[EntryT]):
    """Who announces itself, and what that looks like. ``name`` is one of ``worker`` and ``router``."""

    name: str
    announcement: Callable[..., Announcement[EntryT]]
    id_of: Callable[[EntryT], str]

    @property
    def key_prefix(self) -> str:
        """Of its keys in Redis; the id follows."""
        return f"baton:{self.name}:"

    @property
    def channel(self) -> str:
        """Where every announcement is published."""
        return f"baton:{self.name}s"

    def check_id(self, given: str) -> str:
        """The id itself. Raises ValueError when it cannot be part of a key."""
        if _VALID_ID.fullmatch(given) is None:
            raise ValueError(f"not a {self.name} id: {given[:40]!r}")
        return given

    def announce(self, entry: EntryT, ttl_ms: int) -> Announcement[EntryT]:
        """The process is there. Raises ValueError for an id that cannot be part of a key."""
        return self.announcement(id=self.check_id(self.id_of(entry)), ttl_ms=ttl_ms, entry=entry)

    def withdraw(self, gone: str) -> Announcement[EntryT]:
        """The process of that id has gone. Raises ValueError as above."""
        return self.announcement(id=self.check_id(gone))

    def decode(self, data: bytes) -> Announcement[EntryT]:
        """Raises NotAnAnnouncementError."""
        try:
            decoded = msgspec.json.decode(data, type=self.announcement)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NotAnAnnouncementError(str(error)) from error
        announcement = cast("Announcement[EntryT]", decoded)
        if announcement.entry is not None and self.id_of(announcement.entry) != announcement.id:
            raise NotAnAnnouncementError(f"it names two {self.name}s")
        return announcement


def encode(announcement: Announcement[EntryT]) -> bytes:
    """For ``Kind.decode``."""
    return msgspec.json.encode(announcement)


def _worker_id(status: WorkerStatus) -> str:
    return status.record.worker_id


def _router_id(record: RouterRecord) -> str:
    return record.router_id


WORKERS: Kind[WorkerStatus] = Kind("worker", WorkerAnnouncement, _worker_id)
ROUTERS: Kind[RouterRecord] = Kind("router", RouterAnnouncement, _router_id)
