"""The registry in this process: for tests, and for a process without Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Generic

from baton_serve.core.process.clock import monotonic_ms
from baton_serve.core.registry.announcement import EntryT, Kind
from baton_serve.core.registry.store import REPEAT_MS
from baton_serve.core.registry.view import RegistryView


class MemoryRegistry(Generic[EntryT]):
    """A ``Registry`` of one event loop. ``clock`` returns ms; after moving an injected one, call ``tick``."""

    def __init__(self, kind: Kind[EntryT], clock: Callable[[], int] = monotonic_ms) -> None:
        self._kind = kind
        self._clock = clock
        self._view: RegistryView[EntryT] = RegistryView()
        self._changed = asyncio.Condition()
        self._version = 0
        self.ignored: Counter[str] = Counter()
        self.on_withdrawn: list[Callable[[EntryT], None]] = []

    async def announce(self, entry: EntryT, ttl_ms: int) -> None:
        self._view.apply(self._kind.announce(entry, ttl_ms), self._clock())
        await self.tick()

    async def withdraw(self, process_id: str) -> None:
        withdrawn = self._view.apply(self._kind.withdraw(process_id), self._clock())
        if withdrawn is not None:
            for listener in self.on_withdrawn:
                listener(withdrawn)
            await self.tick()

    async def watch(self) -> AsyncIterator[list[EntryT]]:
        last: list[EntryT] | None = None
        repeat_ms = 0
        while True:
            version, now_ms = self._version, self._clock()
            self._view.merge((), now_ms)
            alive = self._view.alive()
            if alive != last or now_ms >= repeat_ms:
                last, repeat_ms = alive, now_ms + REPEAT_MS
                yield alive
            await self._wait(version)

    async def tick(self) -> None:
        """Make watchers compute the list again."""
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    async def close(self) -> None:
        """Nothing to close."""

    async def _wait(self, version: int) -> None:
        """Wait until an entry has changed since ``version``, or the earliest one has expired."""
        earliest_ms = self._view.next_expiry_ms()
        timeout_s = None if earliest_ms is None else max(0, earliest_ms - self._clock()) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._version != version)
