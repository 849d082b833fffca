"""What a process writes into the registry and publishes, several times a second: JSON, so that people can read it.

There are three kinds: a worker announces its record and its load, as does a vLLM server with Baton's connector, and a
router its record. Everything else is the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Generic, Protocol, TypeVar, cast

import msgspec

from baton_serve.core.protocol.id_syntax import KEY_ID
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.vllm_server import VllmStatus
from baton_serve.core.protocol.worker import WorkerStatus
from baton_serve.core.registry.entry_checks import ImpossibleError, check_router, check_vllm_server, check_worker

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes of one announcement. A worker's has about 1 KB.
MAX_BYTES = 256 << 10
#: Characters of the message of NotAnAnnouncementError, which may quote the bytes.
_MAX_REASON_CHARS = 200

#: A day, in ms: a longer ttl can only be a mistake, since a dead process would be noticed even later.
MAX_TTL_MS = 86_400_000

Ttl = Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_MS)]
Sequence = Annotated[int, msgspec.Meta(ge=0)]
#: What one process announces: ``WorkerStatus``, ``VllmStatus`` or ``RouterRecord``.
EntryT = TypeVar("EntryT")
_EntryT_co = TypeVar("_EntryT_co", covariant=True)


class Announcement(Protocol[_EntryT_co]):
    """One announcement of one process."""

    @property
    def id(self) -> str:
        """The id of the worker, server or router."""

    @property
    def ttl_ms(self) -> int:
        """The milliseconds for which the process counts as alive."""

    @property
    def sequence(self) -> int:
        """A number that grows with each announcement of the process; 0: not numbered, because it is not signed."""

    @property
    def entry(self) -> _EntryT_co | None:
        """What the process says about itself; None: it has left."""


class WorkerAnnouncement(msgspec.Struct, kw_only=True, frozen=True):
    """The announcement of a worker."""

    id: str = msgspec.field(name="worker_id")
    ttl_ms: Ttl = 0
    sequence: Sequence = 0
    entry: WorkerStatus | None = msgspec.field(name="status", default=None)


class VllmAnnouncement(msgspec.Struct, kw_only=True, frozen=True):
    """The announcement of a vLLM server."""

    id: str = msgspec.field(name="server_id")
    ttl_ms: Ttl = 0
    sequence: Sequence = 0
    entry: VllmStatus | None = msgspec.field(name="status", default=None)


class RouterAnnouncement(msgspec.Struct, kw_only=True, frozen=True):
    """The announcement of a router."""

    id: str = msgspec.field(name="router_id")
    ttl_ms: Ttl = 0
    sequence: Sequence = 0
    entry: RouterRecord | None = msgspec.field(name="record", default=None)


class NotAnAnnouncementError(Exception):
    """The bytes are not an announcement that a Baton process writes. The message is one line of bounded length."""

    def __init__(self, why: str) -> None:
        super().__init__(" ".join(why[:_MAX_REASON_CHARS].split()))


@dataclass(frozen=True)
class Kind(Generic[EntryT]):
    """What kind of process announces itself, and how. ``name`` is ``worker``, ``vllm_server`` or ``router``."""

    name: str
    announcement: Callable[..., Announcement[EntryT]]
    id_of: Callable[[EntryT], str]
    #: Raises ImpossibleError for an entry that no process of Baton announces.
    check: Callable[[EntryT], None]

    @property
    def key_prefix(self) -> str:
        """The beginning of the keys of this kind in Redis; the id follows."""
        return f"baton:{self.name}:"

    @property
    def channel(self) -> str:
        """The channel on which every announcement is published."""
        return f"baton:{self.name}s"

    def check_id(self, given: str) -> str:
        """The id itself. Raises ValueError if it cannot be part of a Redis key."""
        if KEY_ID.fullmatch(given) is None:
            raise ValueError(f"not a {self.name} id: {given[:40]!r}")
        return given

    def announce(self, entry: EntryT, ttl_ms: int, sequence: int = 0) -> Announcement[EntryT]:
        """The announcement that the process is alive. Raises ValueError as ``check_id`` does."""
        return self.announcement(id=self.check_id(self.id_of(entry)), ttl_ms=ttl_ms, sequence=sequence, entry=entry)

    def withdraw(self, process_id: str, sequence: int = 0) -> Announcement[EntryT]:
        """The announcement that the process has left. Raises ValueError as ``check_id`` does."""
        return self.announcement(id=self.check_id(process_id), sequence=sequence)

    def decode(self, data: bytes) -> Announcement[EntryT]:
        """The opposite of ``encode``. Raises NotAnAnnouncementError."""
        if len(data) > MAX_BYTES:
            raise NotAnAnnouncementError(f"it has {len(data)} bytes")
        try:
            decoded = msgspec.json.decode(data, type=self.announcement)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotAnAnnouncementError(str(error)) from error
        announcement = cast("Announcement[EntryT]", decoded)
        if KEY_ID.fullmatch(announcement.id) is None:
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
    """The announcement as JSON, for ``Kind.decode``."""
    return msgspec.json.encode(announcement)


def _worker_id(status: WorkerStatus) -> str:
    return status.record.worker_id


def _server_id(status: VllmStatus) -> str:
    return status.record.server_id


def _router_id(record: RouterRecord) -> str:
    return record.router_id


WORKERS: Kind[WorkerStatus] = Kind("worker", WorkerAnnouncement, _worker_id, check_worker)
VLLM_SERVERS: Kind[VllmStatus] = Kind("vllm_server", VllmAnnouncement, _server_id, check_vllm_server)
ROUTERS: Kind[RouterRecord] = Kind("router", RouterAnnouncement, _router_id, check_router)
