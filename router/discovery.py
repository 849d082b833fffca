"""Keeps the pool of workers as the registry has it, for as long as the router runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.worker import WorkerStatus
    from registry.store import Registry
    from router.workers import WorkerPool

log = logging.getLogger("baton.router")

#: Seconds until the registry is watched again after a bug; doubled up to the limit, and forgotten with the next news.
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0


async def discover(registry: Registry[WorkerStatus], pool: WorkerPool) -> None:
    """Until cancelled. ``watch`` outlives a registry that is away; what ends it is a bug, ours or of a library.

    Without this task the router would go on with the workers it knows and never hear of another, so it is begun again.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            async for statuses in registry.watch():
                pool.apply(statuses)
                pause_s = FIRST_PAUSE_S
            log.error("watching the registry ended; again in %g s", pause_s)
        except Exception:
            log.exception("watching the registry met a bug; again in %g s", pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
