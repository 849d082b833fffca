"""What stub engines of both kinds announce of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle

from baton_serve.core.protocol.worker import WorkerLoad, WorkerRecord, WorkerStatus
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.announcer import Announcer
from baton_serve.core.registry.redis_registry import RedisRegistry

MODEL = "stub"
NUM_BLOCKS = 1 << 20
#: As often as workers announce themselves, and as long as they are believed.
ANNOUNCE_MS = 250
TTL_MS = 3000


async def announce(
    redis_url: str, engines: Sequence[tuple[WorkerRecord, Callable[[int], WorkerLoad]]]
) -> list[Announcer[WorkerStatus]]:
    """Announce each engine from now on, as a worker does, but spread over the interval.

    The load of each is asked for with a number of cached blocks: 0 or 1 in turn, as the load of a busy worker changes
    each time.
    """
    registry, announcers = RedisRegistry(redis_url, WORKERS), []
    for one, load in engines:
        cached = cycle((0, 1))
        announcers.append(
            Announcer(
                registry,
                one.worker_id,
                lambda one=one, load=load, cached=cached: WorkerStatus(record=one, load=load(next(cached))),  # type: ignore[misc]
                interval_ms=ANNOUNCE_MS,
                ttl_ms=TTL_MS,
                who="worker",
            )
        )
        await announcers[-1].start()
        await asyncio.sleep(ANNOUNCE_MS / 1000 / len(engines))
    return announcers
