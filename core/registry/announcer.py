"""Announces one process: at an interval, and at once when its entry changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Generic

from baton_serve.core.process.task_end import end_task
from baton_serve.core.registry.announcement import EntryT
from baton_serve.core.registry.store import Registry, RegistryError

logger = logging.getLogger(__name__)

#: Least time in seconds between two announcements, however fast the load changes.
MIN_GAP_S = 0.02
#: Seconds until announcing begins again after an unexpected exception: less than the default ttl.
RESTART_S = 1.0


class Announcer(Generic[EntryT]):
    """Call ``start``, then ``changed`` whenever the entry may have changed, then ``stop``."""

    def __init__(
        self,
        registry: Registry[EntryT],
        own_id: str,
        entry: Callable[[], EntryT],
        *,
        interval_ms: int,
        ttl_ms: int,
        who: str,
    ) -> None:
        """``entry`` returns what to announce now; ``who`` is what the log calls the process, such as ``worker``."""
        self._registry = registry
        self._own_id = own_id
        self._entry = entry
        self._who = who
        self._interval_s = interval_ms / 1000
        self._ttl_ms = ttl_ms
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reachable = True

    async def start(self) -> None:
        """Announce now, and from now on. Returns even if the registry does not answer."""
        await self._announce()
        self._task = asyncio.create_task(self._run(), name="announcer")

    def changed(self) -> None:
        """Announce soon: the entry may have changed."""
        self._changed.set()

    async def stop(self) -> None:
        """Withdraw the entry, so that the process is forgotten now and not only after its ttl. What it announces last,
        such as that it drains, may be news since the last time.
        """
        if self._task is None:
            return
        await end_task(self._task)
        try:
            await self._registry.announce(self._entry(), self._ttl_ms)
            await self._registry.withdraw(self._own_id)
        except RegistryError as error:
            logger.warning("the registry does not answer, our entry runs out by itself: %s", error)

    async def _run(self) -> None:
        """Announce until cancelled. Not even a bug may end this: a healthy process would be forgotten."""
        while True:
            try:
                await self._keep_announcing()
            except Exception:
                logger.exception("announcing this %s met a bug; again in %g s", self._who, RESTART_S)
                await asyncio.sleep(RESTART_S)

    async def _keep_announcing(self) -> None:
        while True:
            await asyncio.sleep(min(MIN_GAP_S, self._interval_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()
            self._changed.clear()
            await self._announce()

    async def _announce(self) -> None:
        try:
            await self._registry.announce(self._entry(), self._ttl_ms)
        except RegistryError as error:
            if self._reachable:
                logger.warning("the registry does not answer, routers will not see this %s: %s", self._who, error)
            self._reachable = False
        else:
            if not self._reachable:
                logger.info("the registry answers again")
            self._reachable = True
