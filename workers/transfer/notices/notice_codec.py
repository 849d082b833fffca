"""The notification with which a rank of D reports its read to a rank of P: ``<lease id>:<n>:<reader>:<rank>``.

vLLM's notification is ``<id>:<n>``, where ``n`` is the number of ranks of the reading engine that notify this rank of
P. The other two fields distinguish several reads of one lease, by two engines or by one engine twice: ``reader`` is
``<engine id>-<read id>``, and ``rank`` is the number of the rank in that engine.

NIXL accepts notifications from any process that can connect, so they are checked here before they are used.
"""

from __future__ import annotations

import re

import msgspec

from baton_serve.core.protocol.id_syntax import LEASE_ID_PATTERN, MAX_ID_CHARS
from baton_serve.workers.limits import MAX_RANKS

#: The pattern of lease ids, and of engine ids, which Baton makes of the same characters.
_ID = LEASE_ID_PATTERN.encode()
_NOTIFICATION = re.compile(rb"(%s):([1-9][0-9]?):(%s-[0-9]{1,20}):(0|[1-9][0-9]?)" % (_ID, _ID))
#: Longer notifications are dropped without parsing.
MAX_NOTIFICATION_BYTES = 2 * MAX_ID_CHARS + 30


class ReadNotice(msgspec.Struct, frozen=True):
    """``rank`` of ``reader`` has read its part of the lease from this rank; ``num_readers`` ranks will notify it."""

    lease_id: str
    num_readers: int
    reader: str
    rank: int


def reader_of(engine_id: str, read_id: int) -> str:
    """The name of one read, equal on all ranks of the engine that reads."""
    return f"{engine_id}-{read_id}"


def encode_read(notice: ReadNotice) -> bytes:
    """The bytes of a notification."""
    return f"{notice.lease_id}:{notice.num_readers}:{notice.reader}:{notice.rank}".encode()


def parse_read(payload: bytes) -> ReadNotice | None:
    """The notification, or None if it is malformed. Never raises."""
    if len(payload) > MAX_NOTIFICATION_BYTES:
        return None
    match = _NOTIFICATION.fullmatch(payload)
    if match is None:
        return None
    lease_id, num_readers, reader, rank = (field.decode("ascii") for field in match.groups())
    notice = ReadNotice(lease_id, int(num_readers), reader, int(rank))
    return notice if notice.num_readers <= MAX_RANKS and notice.rank < MAX_RANKS else None
