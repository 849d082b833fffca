"""What stub engines of both kinds announce of themselves."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from core.protocol.worker import WorkerRecord, WorkerStatus
from core.registry.announcement import WORKERS
from core.registry.redis_registry import RedisRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.protocol.worker import Role, WorkerLoad

MODEL = "stub"
BLOCK_SIZE = 16
NUM_BLOCKS = 1 << 20
#: As often as workers announce themselves, and as long as they are believed.
ANNOUNCE_S = 0.25
TTL_MS = 3000


def record(role: Role, engine_id: str, url: str, max_num_seqs: int) -> WorkerRecord:
    """What does not change of an engine."""
    return WorkerRecord(
        worker_id=secrets.token_hex(6),
        engine_id=engine_id,
        role=role,
        model=MODEL,
        url=url,
        internal_url=url,
        compatibility_hash="stub",
        max_model_len=131_072,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=max_num_seqs,
        weights_fingerprint="stub",
    )


async def announce(
    redis_url: str, records: Sequence[WorkerRecord], loads: Callable[[int], Sequence[WorkerLoad]]
) -> None:
    """Announce each engine as often as a worker does, spread over the interval, until this is cancelled.

    ``loads`` gives the load of each engine, with the number of cached blocks that it is called with: 0 or 1 in turn, as
    the load of a busy worker changes each time.
    """
    registry, num_cached = RedisRegistry(redis_url, WORKERS), 0
    while True:
        for static, load in zip(records, loads(num_cached), strict=True):
            await registry.announce(WorkerStatus(record=static, load=load), TTL_MS)
            await asyncio.sleep(ANNOUNCE_S / len(records))
        num_cached = 1 - num_cached
