"""What a process writes into the registry and publishes, several times a second: JSON, so that people can read it.

There are three kinds: a worker announces its record and its load, as does a vLLM server with Baton's connector, and a
router its record. Everything else is the same for all. An entry is checked before it is used: other programs, and older
versions of Baton, write to Redis too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec

from baton_serve.core.protocol.addresses import is_host, worker_url
from baton_serve.core.protocol.id_syntax import KEY_ID, KeyId
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.vllm_server import VllmStatus
from baton_serve.core.protocol.worker import WorkerStatus

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


class Announcement(msgspec.Struct, Generic[EntryT], kw_only=True, frozen=True):
    """One announcement of one process. Each kind has names of its own for two fields."""

    #: The id of the worker, server or router.
    id: KeyId
    #: Milliseconds for which the process counts as alive.
    ttl_ms: Ttl = 0
    #: Grows with each announcement of the process; 0: not numbered, because it is not signed.
    sequence: Sequence = 0
    #: What the process says about itself; None: it has left.
    entry: EntryT | None = None


class WorkerAnnouncement(Announcement[WorkerStatus], kw_only=True, frozen=True):
    """The announcement of a worker."""

    id: KeyId = msgspec.field(name="worker_id")
    entry: WorkerStatus | None = msgspec.field(name="status", default=None)


class VllmAnnouncement(Announcement[VllmStatus], kw_only=True, frozen=True):
    """The announcement of a vLLM server."""

    id: KeyId = msgspec.field(name="server_id")
    entry: VllmStatus | None = msgspec.field(name="status", default=None)


class RouterAnnouncement(Announcement[RouterRecord], kw_only=True, frozen=True):
    """The announcement of a router."""

    id: KeyId = msgspec.field(name="router_id")
    entry: RouterRecord | None = msgspec.field(name="record", default=None)


class NotAnAnnouncementError(Exception):
    """The bytes are not an announcement that a Baton process writes. The message is one line of bounded length."""

    def __init__(self, why: str) -> None:
        super().__init__(" ".join(why[:_MAX_REASON_CHARS].split()))


@dataclass(frozen=True)
class Kind(Generic[EntryT]):
    """What kind of process announces itself, and how. ``name`` is ``worker``, ``vllm_server`` or ``router``."""

    name: str
    announcement: type[Announcement[EntryT]]
    id_of: Callable[[EntryT], str]
    #: Raises ValueError for addresses of an entry that no process of Baton announces.
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
            announcement = msgspec.json.decode(data, type=self.announcement)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotAnAnnouncementError(str(error)) from error
        entry = announcement.entry
        if entry is None:
            return announcement
        if self.id_of(entry) != announcement.id:
            raise NotAnAnnouncementError(f"it names two {self.name}s")
        try:
            self.check(entry)
        except ValueError as error:  # it repeats no address
            raise NotAnAnnouncementError(str(error)) from None
        return announcement


def encode(announcement: Announcement[EntryT]) -> bytes:
    """The announcement as JSON, for ``Kind.decode``."""
    return msgspec.json.encode(announcement)


def _check_urls(url: str, internal_url: str = "") -> None:
    for one in (url, internal_url or url):
        if worker_url(one) != one:
            raise ValueError("a base URL has no slash at its end")


def _check_vllm_server(status: VllmStatus) -> None:
    _check_urls(status.record.url)
    if not is_host(status.record.side_channel_host):
        raise ValueError("the side channel is nowhere")


WORKERS: Kind[WorkerStatus] = Kind(
    "worker",
    WorkerAnnouncement,
    lambda status: status.record.worker_id,
    lambda status: _check_urls(status.record.url, status.record.internal_url),
)
VLLM_SERVERS: Kind[VllmStatus] = Kind(
    "vllm_server", VllmAnnouncement, lambda status: status.record.server_id, _check_vllm_server
)
ROUTERS: Kind[RouterRecord] = Kind(
    "router",
    RouterAnnouncement,
    lambda record: record.router_id,
    lambda record: _check_urls(record.url, record.internal_url),
)
