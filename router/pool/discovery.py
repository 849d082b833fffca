"""Keeps what is known of others, workers and routers, as the registry has it, for as long as the router runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.registry.store import Registry

log = logging.getLogger("baton.router")

#: Seconds until the registry is watched again after a bug; doubled up to the limit, and forgotten with the next news.
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0


_EntryT = TypeVar("_EntryT")
_Told = TypeVar("_Told", contravariant=True)


class Follower(Protocol[_Told]):
    """Who keeps what is known."""

    def apply(self, entries: Iterable[_Told], /) -> None:
        """Take over the whole list."""


async def discover(
    registry: Registry[_EntryT], follower: Follower[_EntryT], heard: asyncio.Event | None = None
) -> None:
    """Until cancelled. ``watch`` outlives a registry that is away; what ends it is a bug, ours or of a library.

    Without this task the router would go on with those it knows and never hear of another, so it is begun again.
    ``heard`` is set once the registry has said who there is.
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
