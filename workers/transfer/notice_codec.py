"""What a reader tells a rank when it has read what a lease holds there: ``<lease id>:<n>:<reader>:<rank>``.

vLLM says ``<id>:<n>``, where ``n`` ranks of the reading engine read this rank, each of which says so. The two fields
that we add tell reads of one lease apart, by two engines or by one that tries again: ``reader`` is
``<engine id>-<read id>``, and ``rank`` is who of that engine speaks.

NIXL lets anybody who can connect send anything, so what comes in is checked here and nothing else looks at it.
"""

from __future__ import annotations

import re

import msgspec

from workers.limits import LEASE_ID_PATTERN, MAX_ID_CHARS, MAX_RANKS

#: Of a lease; engines that read are ours and have no other characters in theirs.
_ID = LEASE_ID_PATTERN.encode()
_NOTIFICATION = re.compile(rb"(%s):([1-9][0-9]?):(%s-[0-9]{1,20}):(0|[1-9][0-9]?)" % (_ID, _ID))
#: Longer ones are dropped unread.
MAX_NOTIFICATION_BYTES = 2 * MAX_ID_CHARS + 30


class ReadNotice(msgspec.Struct, frozen=True):
    """``rank`` of ``reader`` has read all that it wants of what the lease holds here; ``num_readers`` will say so."""

    lease_id: str
    num_readers: int
    reader: str
    rank: int


def reader_of(engine_id: str, read_id: int) -> str:
    """The name of one read, the same on all ranks of the engine that reads."""
    return f"{engine_id}-{read_id}"


def encode_read(notice: ReadNotice) -> bytes:
    """What goes over the wire."""
    return f"{notice.lease_id}:{notice.num_readers}:{notice.reader}:{notice.rank}".encode()


def parse_read(payload: bytes) -> ReadNotice | None:
    """None for anything that no reader of ours would have sent. Never raises."""
    if len(payload) > MAX_NOTIFICATION_BYTES:
        return None
    match = _NOTIFICATION.fullmatch(payload)
    if match is None:
        return None
    lease_id, num_readers, reader, rank = (field.decode("ascii") for field in match.groups())
    notice = ReadNotice(lease_id, int(num_readers), reader, int(rank))
    return notice if notice.num_readers <= MAX_RANKS and notice.rank < MAX_RANKS else None
