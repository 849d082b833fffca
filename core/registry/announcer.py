"""Keeps the registry's entry of one process fresh: at an interval, and at once when something changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Generic

from core.registry.announcement import EntryT
from core.registry.store import RegistryError
from core.registry.task_end import end_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.registry.store import Registry

logger = logging.getLogger(__name__)

#: Seconds between two announcements at least, however fast the load changes.
MIN_GAP_S = 0.02
#: Seconds until it goes on after a bug: less than an announcement lasts by default.
RESTART_S = 1.0


class Announcer(Generic[EntryT]):
    """``start``, then ``changed`` whenever the entry may have changed, then ``stop``."""

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
        """``entry`` is what is to be announced now; ``who`` is this process in a log line."""
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
        """Announce now, and from now on. Returns also when the registry does not answer."""
        await self._announce()
        self._task = asyncio.create_task(self._run(), name="announcer")

    def changed(self) -> None:
        """The entry may differ from what was announced."""
        self._changed.set()

    async def stop(self) -> None:
        """Take the entry back, so that it is forgotten now and not when its time is over."""
        if self._task is None:
            return
        await end_task(self._task)
        try:
            await self._registry.withdraw(self._own_id)
        except RegistryError as error:
            logger.warning("the registry does not answer, our entry runs out by itself: %s", error)

    async def _run(self) -> None:
        """Without this task a process that is well would be forgotten, so not even a bug ends it."""
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
