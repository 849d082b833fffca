"""Notifications of reads: D's rank sends them, and P's rank counts them until all readers have notified it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from baton_serve.core.protocol.steps import Sent
from baton_serve.workers.rank_protocol.transfer_errors import NixlError
from baton_serve.workers.sharding.gather import Gather, GatherEvent
from baton_serve.workers.transfer.notices.notice_codec import ReadNotice, encode_read, parse_read

if TYPE_CHECKING:
    from baton_serve.workers.transfer.nixl.port import TransferAgent

logger = logging.getLogger(__name__)

#: Most reads of which some readers have notified this rank and others have not. Any process can send notifications, so
#: beyond this number the oldest reads are forgotten; the lease of a forgotten read ends at its deadline.
MAX_OPEN = 4096


class ReadNotices:
    """Sends and counts the notifications of one rank. All calls come from the agent's thread."""

    def __init__(self, agent: TransferAgent) -> None:
        self._agent = agent
        self._gather: Gather[tuple[str, str]] = Gather(MAX_OPEN)
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
        self._gather.open(key, notice.num_readers)
        if self._gather.report(key, notice.rank) is GatherEvent.DONE:
            self._sent.append(Sent(*key))

    def _drop(self) -> None:
        self._num_dropped += 1
        if self._num_dropped.bit_count() == 1:  # the 1st, 2nd, 4th, 8th...: many of them must not fill the log
            logger.warning("%d notifications that are none of ours were dropped so far", self._num_dropped)
