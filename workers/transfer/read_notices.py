"""Notifications of reads: D's rank sends them over NIXL, and P's rank counts them until all readers have notified it.

A notification is ``<lease id>:<n>:<reader>:<rank>``. vLLM's is ``<id>:<n>``, where ``n`` is the number of ranks of the
reading engine that notify this rank of P. The other two fields distinguish several reads of one lease, by two engines
or by one engine twice: ``reader`` is ``<engine id>-<read id>``, ``rank`` the number of the rank in that engine.

NIXL accepts notifications from any process that can connect, so they are checked here before they are used.
"""

from __future__ import annotations

import logging
import re

import msgspec

from baton_serve.core.protocol.id_syntax import LEASE_ID_PATTERN, MAX_ID_CHARS
from baton_serve.core.protocol.steps import Sent
from baton_serve.workers.limits import MAX_RANKS
from baton_serve.workers.rank_protocol.transfer_errors import NixlError
from baton_serve.workers.sharding.gather import Gather
from baton_serve.workers.transfer.nixl.port import TransferAgent

logger = logging.getLogger(__name__)

#: Most reads of which some readers have notified this rank and others have not. Any process can send notifications, so
#: beyond this number the oldest reads are forgotten; the lease of a forgotten read ends at its deadline.
MAX_OPEN = 4096
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


class ReadNotices:
    """Sends and counts the notifications of one rank. All calls come from the agent's thread."""

    def __init__(self, agent: TransferAgent) -> None:
        self._agent = agent
        self._gather = Gather(MAX_OPEN)
        self._sent: list[Sent] = []
        self._num_dropped = 0

    def tell(self, name: str, notice: ReadNotice) -> None:
        """Notify a rank, which may be this one. Raises NixlError."""
        if name == self._agent.name:
            self._count(notice)
        else:
            self._agent.notify(name, encode_read(notice))

    def listen(self) -> bool:
        """Handle the notifications that have arrived; True if there were any."""
        try:
            payloads = self._agent.notifications()
        except NixlError as error:
            logger.warning("notifications were lost: %s", error)
            return False
        for payload in payloads:
            notice = parse_read(payload)
            if notice is None:
                self._drop()
            else:
                self._count(notice)
        return bool(payloads)

    def take_sent(self) -> list[Sent]:
        """The reads of this rank's blocks that all of their readers have finished since the last call."""
        sent, self._sent = self._sent, []
        return sent

    def _count(self, notice: ReadNotice) -> None:
        key = notice.lease_id, notice.reader
        if self._gather.report(key, notice.rank, notice.num_readers):
            self._sent.append(Sent(*key))

    def _drop(self) -> None:
        self._num_dropped += 1
        if self._num_dropped.bit_count() == 1:  # the 1st, 2nd, 4th, 8th...: many of them must not fill the log
            logger.warning("%d notifications that are none of ours were dropped so far", self._num_dropped)
