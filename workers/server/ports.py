"""What the HTTP server needs of an engine and of P's leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from workers.engine.api import Engine
    from workers.engine.counters import EngineStats


class ObservableEngine(Protocol):
    """What the HTTP server needs of an engine beyond ``api.Engine``; ``AsyncEngine`` has it."""

    def stats(self) -> EngineStats:
        """All numbers of the engine."""

    def check(self) -> None:
        """Raise EngineFault if the block counts do not add up."""

    def begin_drain(self) -> None:
        """Refuse new requests."""


class LeaseControl(Protocol):
    """What the HTTP server needs of P's leases; ``EngineLeases`` has it."""

    async def grant(self, lease_id: str) -> bool:
        """Grant the lease in the store; if the store cannot be reached, return and try again later.

        False: the lease has ended already, and its blocks are free.
        """

    def drop(self, lease_id: str) -> None:
        """End a lease that no D will read: unpin the blocks now, and end it in the store too. Never raises."""

    def drop_request(self, request_id: str, but: str = "") -> bool:
        """Drop all leases of the request except ``but``; False if there are none."""

    def drop_all(self, suffix: str) -> int:
        """Drop all leases of requests whose id ends with ``suffix``; returns how many there were."""


if TYPE_CHECKING:

    class ServedEngine(Engine, ObservableEngine, Protocol):
        """What requests and pages need."""
