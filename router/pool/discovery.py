"""Keeps what is known of workers, or of other routers, as the registry has it, for as long as the router runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.registry.store import Registry

log = logging.getLogger("baton.router")

#: Seconds until the registry is watched again after a bug; doubled up to the limit, reset by the next list.
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0


_EntryT = TypeVar("_EntryT")
_Told = TypeVar("_Told", contravariant=True)


class Follower(Protocol[_Told]):
    """Takes the lists of the registry: ``WorkerPool``, ``LinkedPeers``, and what stands before these."""

    def apply(self, entries: Iterable[_Told], /) -> None:
        """Take over the whole list."""


async def discover(
    registry: Registry[_EntryT], follower: Follower[_EntryT], heard: asyncio.Event | None = None
) -> None:
    """Pass on the registry's lists until cancelled. ``heard`` is set with the first one.

    ``watch`` outlives a registry that is away, so only a bug ends it, ours or a library's. It is then begun again,
    since without it the router would never hear of another worker.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            async for entries in registry.watch():
                follower.apply(entries)
                if heard is not None:
                    heard.set()
                pause_s = FIRST_PAUSE_S
            log.error("watching the registry ended; again in %g s", pause_s)
        except Exception:
            log.exception("watching the registry met a bug; again in %g s", pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
