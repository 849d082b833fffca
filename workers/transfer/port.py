"""What the rank calls of block transfer, and what refuses all reads. No torch and no NIXL here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.protocol.steps import (
    CancelRead,
    Connect,
    Connected,
    Disconnect,
    RankFailed,
    Read,
    ReadResult,
    TransferReport,
)
from baton_serve.workers.transfer.versions import VersionTable

#: The commands of the main process, passed on by the receiver in order.
TransferCommand = Connect | Disconnect | Read | CancelRead
#: The answers, emitted from any thread. ``RankFailed``: block transfer has failed, and the rank has to end.
TransferEvent = Connected | TransferReport | RankFailed
Emit = Callable[[TransferEvent], None]

REASON = "this engine was started without block transfer"


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank that other engines may read. It lives as long as the process.

    ``metadata`` is without an agent. Its ``cache_memory_type`` is ``DRAM`` or ``VRAM``; its ``cache_device_id`` is 0
    for DRAM.
    """

    metadata: RankMetadata
    versions: VersionTable


class Transfer(Protocol):
    """Block transfer of one rank. Constructed on the rank's main thread once the cache exists."""

    def metadata(self) -> RankMetadata:
        """What other engines need to read this rank's blocks; it never changes."""

    def submit(self, command: TransferCommand) -> None:
        """Queue a command and return at once; called from the receiver thread.

        Every ``Connect`` is answered by one ``Connected``, every ``Read`` by one ``ReadResult`` in a
        ``TransferReport``. A ``Connected`` with an error may also come later: the engine was lost. The ``fresh``
        versions of a read are stored before the read is posted. When a remote engine has read blocks of this rank, a
        ``Sent`` is reported once.
        """

    def close(self) -> None:
        """End the reads in flight and forget every remote engine. Idempotent; nothing is emitted afterwards."""


class NullTransfer:
    """A ``Transfer`` for engines that neither read blocks nor are read from.

    Answers every connect with an error and every read with ``failed``, in the thread that calls ``submit``.
    """

    def __init__(self, memory: RankMemory, emit: Emit) -> None:
        self._memory = memory
        self._emit = emit

    def metadata(self) -> RankMetadata:
        return self._memory.metadata

    def submit(self, command: TransferCommand) -> None:
        if isinstance(command, Connect):
            self._emit(Connected(command.engine_id, REASON))
        elif isinstance(command, Read):
            self._memory.versions.store(command.fresh)
            self._emit(TransferReport([], [ReadResult(command.read_id, "failed", 0, 0.0, REASON)]))

    def close(self) -> None:
        """Do nothing: there are no reads to end."""
