"""Who may serve a request now; and when all of them are gone, how long it waits for others to come.

A new request is refused at once: its client, or a load balancer, asks elsewhere or again. One that workers have had
already waits like one that waits for room, so that the death of the last worker of a kind costs it the time until there
is another one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.errors import ApiError, UnavailableError
from router.try_again import able

if TYPE_CHECKING:
    from router.exchange import Exchange
    from router.workers import Route


async def route_of(x: Exchange) -> Route:
    """Who may serve it, reachable or not. Raises ApiError."""
    try:
        return x.services.pool.route(x.ask.model)
    except ApiError:
        if not was_served(x):
            raise
        return await somebody(x)


def was_served(x: Exchange) -> bool:
    """A worker has died with it, or its client has been sent something."""
    return bool(x.dead_engines) or x.seen.begun or x.reply.started


async def somebody(x: Exchange) -> Route:
    """Wait until somebody takes work. Raises UnavailableError after ``held_timeout_s``, or the last worker's error."""
    changed = asyncio.Event()
    listeners = x.services.pool.on_room
    listeners.append(changed.set)
    try:
        async with asyncio.timeout(x.services.settings.held_timeout_s):
            while (route := _takes_work(x)) is None:
                changed.clear()
                await changed.wait()
            return route
    except TimeoutError:
        raise x.last_error or UnavailableError("No worker is left.", code="no_worker", retry_after_s=1) from None
    finally:
        listeners.remove(changed.set)


def _takes_work(x: Exchange) -> Route | None:
    try:
        route = x.services.pool.route(x.ask.model)
    except ApiError:
        return None
    decode = able(x, route.decode)
    return route if decode and any(worker.takes_work for worker in (*able(x, route.prefill), *decode)) else None
