"""The engine's interface to all its ranks: every message goes to all ranks, and their answers are merged into one.

To the ranks: all get the same messages in the same order. The handshake pool is notified of every read, because it must
keep a remote engine that is being read from, and refuse one whose reads were given up and have not ended.
From the ranks: ``rank_merge`` merges answers. The end of a read is reported to the engine and to the pool. As soon as
one rank's part of a read fails, the engine gets ``ReadFailing`` and the other ranks get ``CancelRead``. Ranks that
disagree end the engine: it gets ``RankFailed``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from baton_serve.core.protocol.steps import (
    CancelRead,
    Connected,
    FromRank,
    GrammarCompiled,
    RankFailed,
    Read,
    ReadResult,
    Step,
    StepResult,
    ToRank,
    TransferReport,
)
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.ports import EngineEvent, LeaseRead, ReadFailing
from baton_serve.workers.rank_group.rank_merge import ReadMerge, StepMerge
from baton_serve.workers.sharding.gather import Gather

#: Most reads by other engines that only some local ranks have reported; bounded because peers choose the lease ids.
_MAX_SENT = 4096


class PeerTracker(Protocol):
    """Is notified of reads from remote engines; the handshake pool implements it."""

    def on_connected(self, rank: int, message: Connected, /) -> None:
        """A local rank has answered ``Connect``, or has lost the remote engine since."""

    def read_started(self, engine_id: str, read_id: int, /) -> None:
        """A read from the engine was sent to the ranks."""

    def read_given_up(self, read_id: int, /) -> None:
        """A read takes too long; it has not ended."""

    def read_ended(self, engine_id: str, read_id: int, /, *, failed: bool) -> None:
        """A read from the engine has ended on every rank."""


class RankFacade:
    """The engine's ``Ranks`` for ``num_ranks`` ranks, numbered from 0. All calls come from the engine's loop."""

    def __init__(self, send: Callable[[ToRank], None], peers: PeerTracker, num_ranks: int = 1) -> None:
        """``send`` queues a message for every rank; it does not raise if a connection is closed."""
        self._send = send
        self._num_ranks = num_ranks
        self._peers = peers
        self._steps = StepMerge(num_ranks)
        #: By read id, the reads that have not ended on every rank.
        self._reads: dict[int, ReadMerge] = {}
        #: Reads by other engines that some local ranks have reported as finished.
        self._sent = Gather(_MAX_SENT)
        #: Gets every rank's answer to ``CompileGrammar``; set once there is a compiler.
        self.on_compiled: Callable[[int, GrammarCompiled], None] = lambda rank, message: None
        #: The engine's callback; set once there is an engine.
        self.on_event: Callable[[EngineEvent], None] = lambda event: None

    def __repr__(self) -> str:
        return f"<RankFacade {len(self._steps)} steps, {len(self._reads)} reads, {len(self._sent)} being read>"

    # --- to the ranks -------------------------------------------------------------------------------------------

    def send(self, message: ToRank) -> None:
        if isinstance(message, Step):
            self._steps.start(message.step_id)
        elif isinstance(message, Read):
            self._reads[message.read_id] = ReadMerge(message.engine_id, self._num_ranks)
            self._peers.read_started(message.engine_id, message.read_id)
        elif isinstance(message, CancelRead):
            self._cancel(message)
            return
        self._send(message)

    def _cancel(self, message: CancelRead) -> None:
        """Send ``CancelRead`` once per read, and only while the read has not ended."""
        read = self._reads.get(message.read_id)
        if read is not None and not read.is_cancelled:
            read.is_cancelled = True
            self._send(message)

    def give_up_read(self, read_id: int) -> None:
        """Cancel a read that takes too long. No new read from its engine begins until it has ended."""
        read = self._reads.get(read_id)
        if read is not None:
            self._cancel(CancelRead(read_id))
            self._peers.read_given_up(read_id)

    def silent_ranks(self, step_id: int) -> list[int]:
        return self._steps.silent(step_id)

    # --- from the ranks -----------------------------------------------------------------------------------------

    def handle(self, rank: int, event: FromRank) -> None:
        """Take a message of one rank. The engine and the pool get the merged answer once every rank has answered."""
        if isinstance(event, StepResult):
            self._handle_step(rank, event)
        elif isinstance(event, TransferReport):
            self._handle_report(rank, event)
        elif isinstance(event, Connected):
            self._peers.on_connected(rank, event)
        elif isinstance(event, GrammarCompiled):
            self.on_compiled(rank, event)
        elif isinstance(event, RankFailed):
            self.on_event(RankFailed(f"rank {rank}: {event.error}"))

    def _handle_step(self, rank: int, part: StepResult) -> None:
        try:
            result = self._steps.handle(rank, part)
        except RankProtocolError as error:
            self.on_event(RankFailed(str(error)))
            return
        if result is not None:
            self.on_event(result)

    def _handle_report(self, rank: int, report: TransferReport) -> None:
        for sent in report.sent:
            if self._sent.report((sent.lease_id, sent.reader), rank, self._num_ranks):
                self.on_event(LeaseRead(sent.lease_id))
        for part in report.received:
            self._handle_part(rank, part)

    def _handle_part(self, rank: int, part: ReadResult) -> None:
        read = self._reads.get(part.read_id)
        event = None if read is None else read.handle(rank, part)
        if read is None or event is None:
            return
        if isinstance(event, ReadFailing):
            self._cancel(CancelRead(event.read_id))
        else:
            # The pool is notified before the engine, whose next read may be from the same remote engine.
            del self._reads[event.read_id]
            self._peers.read_ended(read.engine_id, event.read_id, failed=event.outcome == "failed")
        self.on_event(event)
