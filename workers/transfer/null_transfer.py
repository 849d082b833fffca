"""A ``Transfer`` that refuses every read: for engines that neither read blocks nor are read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.protocol.steps import Connect, Connected, Read, ReadResult, TransferReport

if TYPE_CHECKING:
    from baton_serve.workers.transfer.port import Emit, RankMemory, TransferCommand

REASON = "this engine was started without block transfer"


class NullTransfer:
    """Answers every connect with an error and every read with ``failed``, in the thread that calls ``submit``."""

    def __init__(self, memory: RankMemory, emit: Emit) -> None:
        self._memory = memory
        self._emit = emit

    def metadata(self) -> RankMetadata:
        """The metadata of the rank, without an agent."""
        memory = self._memory
        return RankMetadata(
            engine_id=memory.engine_id,
            rank=memory.rank,
            num_ranks=memory.num_ranks,
            agent_metadata=b"",
            agent_name="",
            cache_address=memory.cache_address,
            cache_memory_type=memory.cache_memory_type,
            cache_device_id=memory.cache_device_id,
            num_blocks=memory.num_blocks,
            block_bytes=memory.block_bytes,
            version_address=memory.versions.address,
            shard=memory.shard,
        )

    def submit(self, command: TransferCommand) -> None:
        """Answer ``Connect`` and ``Read`` with an error."""
        if isinstance(command, Connect):
            self._emit(Connected(command.engine_id, REASON))
        elif isinstance(command, Read):
            self._memory.versions.store(command.fresh)
            self._emit(TransferReport([], [ReadResult(command.read_id, "failed", 0, 0.0, REASON)]))

    def close(self) -> None:
        """Do nothing: there are no reads to end."""
