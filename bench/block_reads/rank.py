"""A rank that computes nothing: the product's block transfer over memory of its own."""

from __future__ import annotations

import queue
import secrets
import time
from typing import TYPE_CHECKING, Any

from baton_serve.core.protocol.handshake import RankMetadata, Shard
from baton_serve.core.protocol.steps import Connect, Connected, Read, TransferReport
from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.transfer.port import RankMemory, TransferEvent
from baton_serve.workers.transfer.versions import VersionTable
from bench.block_reads.memory import Pieces

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Longest wait for an answer of block transfer, seconds.
ANSWER_TIMEOUT_S = 60.0


class BenchRank:
    """A rank whose blocks are the pieces of ``cache``; the version of every block is 0. Raises TransferError."""

    def __init__(self, cache: Pieces, options: TransferOptions | None = None) -> None:
        # NIXL reads the environment when it is imported, so the caller has to have set it.
        from baton_serve.workers.transfer.rank_transfer import RankTransfer

        # The memory has to outlive the agent.
        self._cache = cache
        self._events: queue.SimpleQueue[TransferEvent] = queue.SimpleQueue()
        versions = VersionTable(cache.num_pieces)
        metadata = RankMetadata(
            engine_id=secrets.token_hex(8),
            rank=0,
            num_ranks=1,
            agent_metadata=b"",
            agent_name="",
            cache_address=cache.address,
            cache_memory_type=cache.memory_type,
            cache_device_id=0,
            num_blocks=cache.num_pieces,
            block_bytes=cache.piece_bytes,
            shard=Shard(first_layer=0, last_layer=1, first_head=0, last_head=1),
            version_address=versions.address,
        )
        self.transfer = RankTransfer(
            RankMemory(metadata, versions), self._events.put, options, on_thread_start=cache.use_on_this_thread
        )

    def connect(self, remote: RankMetadata) -> None:
        """Connect an engine of one rank. Raises RuntimeError when that fails."""
        self.transfer.submit(Connect(remote.engine_id, [remote]))
        answer = self._events.get(timeout=ANSWER_TIMEOUT_S)
        if not isinstance(answer, Connected) or answer.error:
            raise RuntimeError(f"no connection: {answer}")

    def read(self, engine_id: str, remote: NDArray[Any], local: NDArray[Any]) -> tuple[float, float]:
        """Read blocks. Returns the seconds until the report is here, and those within the agent's thread.

        Raises RuntimeError when the read fails.
        """
        command = Read(1, engine_id, "ab", remote.tolist(), local.tolist(), promise=0, fresh=[])
        began_s = time.perf_counter()
        self.transfer.submit(command)
        report = self._events.get(timeout=ANSWER_TIMEOUT_S)
        seconds = time.perf_counter() - began_s
        if not isinstance(report, TransferReport) or [result.outcome for result in report.received] != ["done"]:
            raise RuntimeError(f"the read failed: {report}")
        return seconds, report.received[0].seconds
