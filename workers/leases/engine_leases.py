"""The leases of one engine, for the HTTP server: calls the lease keeper and the engine together."""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.core.leases.store import LeaseState
from baton_serve.workers.engine.api import Engine
from baton_serve.workers.leases.keeper import LeaseKeeper


class EngineLeases:
    """The engine leases the blocks before ``LeaseKeeper.grant`` is called, and tells the keeper when a lease has
    ended.
    """

    def __init__(self, keeper: LeaseKeeper, engine: Engine) -> None:
        self._keeper = keeper
        self._engine = engine

    def grant(self, lease_id: str) -> bool:
        """Grant the lease, of which the store is told in the background. False if it has ended already, so that its
        blocks are free.
        """
        if lease_id not in self._engine.leases:
            return False
        self._keeper.grant(lease_id)
        return True

    def drop(self, lease_id: str) -> None:
        """End a lease that no D will read: unpin its blocks now, and end it in the store too. Never raises."""
        self._engine.end_lease(lease_id, LeaseState.RELEASED)

    def release(self, lease_ids: Iterable[str]) -> int:
        """Drop these leases; returns how many of them there were."""
        held = self.held(lease_ids)
        for lease_id in held:
            self.drop(lease_id)
        return len(held)

    def held(self, lease_ids: Iterable[str]) -> list[str]:
        """Those of these leases that keep blocks, each once."""
        return [lease_id for lease_id in dict.fromkeys(lease_ids) if lease_id in self._engine.leases]

    def drop_request(self, request_id: str) -> bool:
        """Drop all leases of the request, in the store or not; False if there are none."""
        return bool(self.release(self._engine.leases.of(request_id)))

    def drop_older(self, request_id: str, but: str) -> None:
        """Drop the leases of the request except ``but``, and except those that other choices read as well."""
        for lease_id in self._engine.leases.of(request_id):
            if lease_id != but and not self._engine.leases.has_readers(lease_id):
                self.drop(lease_id)

    def note_read(self, lease_id: str) -> None:
        """Note that the first reader of the lease has read, or need not."""
        self._engine.note_read(lease_id)

    def drop_all(self, suffix: str) -> int:
        """Drop all leases of requests whose id ends with ``suffix``; returns their number."""
        return self.release(self._engine.leases.ending_with(suffix))
