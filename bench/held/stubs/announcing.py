"""What stub engines of both kinds announce of themselves."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from baton_serve.core.protocol.worker import WorkerRecord, WorkerStatus
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.redis_registry import RedisRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton_serve.core.protocol.worker import Role, WorkerLoad

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

    A busy process announces together what has become due meanwhile, so that each engine is as late as a worker would be
    whose loop is as busy, and not later by all those before it.

    ``loads`` gives the load of each engine, with the number of cached blocks that it is called with: 0 or 1 in turn, as
    the load of a busy worker changes each time.
    """
    registry, num_cached = RedisRegistry(redis_url, WORKERS), 0
    clock, each_s = asyncio.get_running_loop().time, ANNOUNCE_S / len(records)
    turn_s = clock()
    while True:
        entries = [WorkerStatus(record=one, load=load) for one, load in zip(records, loads(num_cached), strict=True)]
        num_cached = 1 - num_cached
        while entries:
            num = 1 + max(0, int((clock() - turn_s) / each_s))
            due, entries = entries[:num], entries[num:]
            await asyncio.gather(*(registry.announce(entry, TTL_MS) for entry in due))
            turn_s += len(due) * each_s
            await asyncio.sleep(max(0.0, turn_s - clock()))
