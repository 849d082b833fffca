"""The registry port: workers and routers announce themselves several times a second, and routers watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from baton_serve.core.registry.announcement import EntryT

#: See ``Registry.watch``. A second is a third of the time that a router counts a report of a load.
REPEAT_MS: Final = 1000


class RegistryError(Exception):
    """The registry could not be reached; callers continue with the entries that they know."""


class Registry(Protocol[EntryT]):
    """Where processes of one kind are announced. Implementations: ``RedisRegistry``, ``MemoryRegistry``."""

    #: Announcements that were ignored, by reason.
    ignored: Counter[str]
    #: Called with the last entry of a process that withdraws, before ``watch`` yields a list without it.
    on_withdrawn: list[Callable[[EntryT], None]]

    async def announce(self, entry: EntryT, ttl_ms: int) -> None:
        """Publish the entry of this process. It is forgotten ``ttl_ms`` after the last announcement.

        Raises RegistryError, and ValueError for an id that cannot be part of a Redis key.
        """

    async def withdraw(self, process_id: str) -> None:
        """Forget the process now. Raises as ``announce`` does."""

    def watch(self) -> AsyncIterator[list[EntryT]]:
        """Yield the whole list at once, and again after every change, also when the ttl of a process is over.

        While announcements come that change nothing, it is yielded again every ``REPEAT_MS``: so it is known that the
        processes are heard. An entry that was announced again is another object.

        While the store cannot be reached this yields nothing, and continues afterwards.
        """

    async def close(self) -> None:
        """Close all connections."""
