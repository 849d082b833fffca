"""What is written into the registry and published, several times a second. JSON, so that people can read it.

There are two kinds: workers announce who they are and how busy, routers who they are. All else is the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Generic, Protocol, TypeVar, cast

import msgspec

from core.protocol.router import RouterRecord
from core.protocol.worker import WorkerStatus
from core.registry.entry_checks import VALID_ID, ImpossibleError, check_router, check_worker

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes of one announcement. A worker's has about 1 KB.
MAX_BYTES = 256 << 10
#: Characters of the reason why something is no announcement, which may repeat some of it.
_MAX_REASON_CHARS = 200

#: A day: a process whose death would show only later than that is a mistake.
MAX_TTL_MS = 86_400_000

Ttl = Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_MS)]
Sequence = Annotated[int, msgspec.Meta(ge=0)]
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
    def sequence(self) -> int:
        """Grows with each announcement of the process; 0: it is not counted, nor signed."""

    @property
    def entry(self) -> _EntryT_co | None:
        """What is announced."""


class WorkerAnnouncement(msgspec.Struct, kw_only=True, frozen=True):
    """A worker's."""

    id: str = msgspec.field(name="worker_id")
    ttl_ms: Ttl = 0
    sequence: Sequence = 0
    entry: WorkerStatus | None = msgspec.field(name="status", default=None)


class RouterAnnouncement(msgspec.Struct, kw_only=True, frozen=True):
    """A router's."""

    id: str = msgspec.field(name="router_id")
    ttl_ms: Ttl = 0
    sequence: Sequence = 0
    entry: RouterRecord | None = msgspec.field(name="record", default=None)


class NotAnAnnouncementError(Exception):
    """Somebody else wrote this. One line of bounded length."""

    def __init__(self, why: str) -> None:
        super().__init__(" ".join(why[:_MAX_REASON_CHARS].split()))


@dataclass(frozen=True)
class Kind(Generic[EntryT]):
    """Who announces itself, and what that looks like. ``name`` is one of ``worker`` and ``router``."""

    name: str
    announcement: Callable[..., Announcement[EntryT]]
    id_of: Callable[[EntryT], str]
    #: Raises ImpossibleError for what nobody of ours announces.
    check: Callable[[EntryT], None]

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
        if VALID_ID.fullmatch(given) is None:
            raise ValueError(f"not a {self.name} id: {given[:40]!r}")
        return given

    def announce(self, entry: EntryT, ttl_ms: int, sequence: int = 0) -> Announcement[EntryT]:
        """The process is there. Raises ValueError for an id that cannot be part of a key."""
        return self.announcement(id=self.check_id(self.id_of(entry)), ttl_ms=ttl_ms, sequence=sequence, entry=entry)

    def withdraw(self, gone: str, sequence: int = 0) -> Announcement[EntryT]:
        """The process of that id has gone. Raises ValueError as above."""
        return self.announcement(id=self.check_id(gone), sequence=sequence)

    def decode(self, data: bytes) -> Announcement[EntryT]:
        """Raises NotAnAnnouncementError."""
        if len(data) > MAX_BYTES:
            raise NotAnAnnouncementError(f"it has {len(data)} bytes")
        try:
            decoded = msgspec.json.decode(data, type=self.announcement)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotAnAnnouncementError(str(error)) from error
        announcement = cast("Announcement[EntryT]", decoded)
        if VALID_ID.fullmatch(announcement.id) is None:
            raise NotAnAnnouncementError(f"not a {self.name} id")
        if announcement.entry is not None:
            self._check(announcement.id, announcement.entry)
        return announcement

    def _check(self, announced: str, entry: EntryT) -> None:
        if self.id_of(entry) != announced:
            raise NotAnAnnouncementError(f"it names two {self.name}s")
        try:
            self.check(entry)
        except ImpossibleError as error:
            raise NotAnAnnouncementError(str(error)) from None


def encode(announcement: Announcement[EntryT]) -> bytes:
    """For ``Kind.decode``."""
    return msgspec.json.encode(announcement)


def _worker_id(status: WorkerStatus) -> str:
    return status.record.worker_id


def _router_id(record: RouterRecord) -> str:
    return record.router_id


WORKERS: Kind[WorkerStatus] = Kind("worker", WorkerAnnouncement, _worker_id, check_worker)
ROUTERS: Kind[RouterRecord] = Kind("router", RouterAnnouncement, _router_id, check_router)
