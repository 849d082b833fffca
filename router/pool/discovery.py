"""Passes the registry's lists of workers, or of routers, to whatever follows them, as long as the router runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol, TypeVar

from baton_serve.core.registry.store import Registry

log = logging.getLogger("baton.router")

#: Seconds until the registry is watched again after a bug; doubled up to the maximum, reset by the next list.
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0


_EntryT = TypeVar("_EntryT")
_Told = TypeVar("_Told", contravariant=True)


class Follower(Protocol[_Told]):
    """Receives the registry's lists: ``WorkerPool``, ``LinkedPeers`` and ``ProvenWorkers``."""

    def apply(self, entries: Iterable[_Told], /) -> None:
        """Replace what is known by this list."""


async def discover(registry: Registry[_EntryT], follower: Follower[_EntryT]) -> None:
    """Pass on the registry's lists until cancelled.

    ``watch`` continues while the registry is unreachable, so only a bug, in Baton or a library, ends it. It is then
    restarted, since without it the router would never learn of another worker.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            async for entries in registry.watch():
                follower.apply(entries)
                pause_s = FIRST_PAUSE_S
            log.error("watching the registry ended; again in %g s", pause_s)
        except Exception:
            log.exception("watching the registry met a bug; again in %g s", pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
