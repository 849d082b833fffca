"""What a worker writes into the registry and publishes, several times a second. JSON, so that people can read it."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from protocol.worker import WorkerStatus

#: No colon, no wildcard: an id can neither leave its place in a key nor match another.
_VALID_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")

#: A day: a worker whose death would show only later than that is a mistake.
MAX_TTL_MS = 86_400_000


class Announcement(msgspec.Struct, kw_only=True, frozen=True):
    """The worker is there for ``ttl_ms`` more; without ``status`` it has gone."""

    worker_id: str
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_MS)] = 0
    status: WorkerStatus | None = None


class NotAnAnnouncementError(Exception):
    """Somebody else wrote this."""


def check_worker_id(worker_id: str) -> str:
    """The id itself. Raises ValueError when it cannot be part of a key."""
    if _VALID_ID.fullmatch(worker_id) is None:
        raise ValueError(f"not a worker id: {worker_id[:40]!r}")
    return worker_id


def encode(announcement: Announcement) -> bytes:
    return msgspec.json.encode(announcement)


def decode(data: bytes) -> Announcement:
    """Raises NotAnAnnouncementError."""
    try:
        announcement = msgspec.json.decode(data, type=Announcement)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotAnAnnouncementError(str(error)) from error
    status = announcement.status
    if status is not None and status.record.worker_id != announcement.worker_id:
        raise NotAnAnnouncementError("it names two workers")
    return announcement
