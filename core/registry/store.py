"""The registry port. A process announces itself several times a second; routers watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from core.registry.announcement import EntryT

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator


class RegistryError(Exception):
    """The registry could not be reached; callers keep what they knew."""


class Registry(Protocol[EntryT]):
    """Where processes of one kind are announced. Implementations: ``RedisRegistry``, ``MemoryRegistry``."""

    #: Announcements that were ignored, by reason.
    ignored: Counter[str]

    async def announce(self, entry: EntryT, ttl_ms: int) -> None:
        """Publish what is to be known of this process; forgotten ``ttl_ms`` after the last announcement."""

    async def withdraw(self, gone: str) -> None:
        """Forget the process of that id now."""

    async def snapshot(self) -> list[EntryT]:
        """All that are alive now."""

    def watch(self) -> AsyncIterator[list[EntryT]]:
        """Yield the whole list at once, then again after every change; a process whose ttl ran out counts as one.

        Survives a store that goes away and comes back: it yields nothing meanwhile and goes on afterwards.
        """

    async def close(self) -> None:
        """Give back connections."""
