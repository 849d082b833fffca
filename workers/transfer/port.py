"""What the rank asks of whoever moves blocks between engines. No torch and no NIXL here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from core.protocol.steps import CancelRead, Connect, Connected, Disconnect, RankFailed, Read, TransferReport

if TYPE_CHECKING:
    from core.protocol.handshake import RankMetadata, Shard
    from workers.transfer.versions import VersionTable

#: What the receiver hands over, in the order in which it arrived.
TransferCommand = Connect | Disconnect | Read | CancelRead
#: What comes back, from any thread. ``RankFailed``: transfer cannot go on, so the rank has to end.
TransferEvent = Connected | TransferReport | RankFailed
Emit = Callable[[TransferEvent], None]


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """The memory of one rank as others may read it. It lives as long as the process.

    Block ``i`` starts at ``cache_address + i * block_bytes``; ``num_blocks * block_bytes`` bytes in all.
    ``cache_memory_type`` is NIXL's word: ``DRAM`` or ``VRAM``; ``cache_device_id`` is 0 for DRAM.
    """

    engine_id: str
    rank: int
    num_ranks: int
    cache_address: int
    cache_memory_type: str
    cache_device_id: int
    num_blocks: int
    block_bytes: int
    shard: Shard
    versions: VersionTable


class Transfer(Protocol):
    """One rank's end of the block reads. Constructed on the rank's main thread once the cache exists."""

    def metadata(self) -> RankMetadata:
        """How others read this rank's blocks; final once constructed."""

    def submit(self, command: TransferCommand) -> None:
        """Queue a command and return at once; called from the receiver thread.

        Every ``Connect`` is answered by one ``Connected``, every ``Read`` by one ``ReadResult`` in some
        ``TransferReport``. A ``Connected`` with an error may also come unasked: the engine was lost since. A read's
        ``fresh`` versions are stored by the implementation, before the read is posted. What the readers of this
        rank's blocks have finished is reported as ``Sent``, once per reader.
        """

    def close(self) -> None:
        """End what is in flight and forget every remote engine. Idempotent; nothing is emitted afterwards."""
