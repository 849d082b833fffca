"""What the HTTP front asks about leases, answered by keeper and engine together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.engine.api import Engine
    from workers.leases.keeper import LeaseKeeper


class KeptLeases:
    """Implements ``serving.Leases``. The keeper unpins through ``on_end``; what it never heard of is unpinned here."""

    def __init__(self, keeper: LeaseKeeper, engine: Engine) -> None:
        self._keeper = keeper
        self._engine = engine

    async def grant(self, lease_id: str) -> bool:
        """Hold the lease in the store, or at least here. False: it has ended, before or meanwhile."""
        if not self._engine.has_lease(lease_id):
            return False
        await self._keeper.grant(lease_id)
        return self._engine.has_lease(lease_id)

    def drop(self, lease_id: str) -> None:
        """Unpin now; the keeper tells the store."""
        if not self._keeper.drop(lease_id):
            self._engine.end_lease(lease_id)

    def drop_request(self, request_id: str, but: str = "") -> bool:
        """Drop what is held for the request, told to anybody or not, except the lease ``but``; False if nothing is."""
        lease_ids = [lease_id for lease_id in self._engine.leases_of(request_id) if lease_id != but]
        for lease_id in lease_ids:
            self.drop(lease_id)
        return bool(lease_ids)

    def drop_all(self, suffix: str) -> int:
        """Drop what is held for requests whose id ends with ``suffix``; how many leases that were."""
        lease_ids = self._engine.leases_with(suffix)
        for lease_id in lease_ids:
            self.drop(lease_id)
        return len(lease_ids)

    def read_by_peer(self, lease_id: str) -> None:
        """D's notification: it has what it needs."""
        if not self._keeper.done(lease_id):
            self._engine.end_lease(lease_id)
