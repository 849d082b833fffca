"""The listing behind ``GET /admin/leases``: the store's leases, and which request keeps each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from leases.store import LeaseState, LeaseStoreError
from protocol.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leases.store import LeaseStatus, LeaseStore


class LeaseView(BaseModel):
    """One lease that has not ended."""

    lease_id: str
    engine_id: str
    state: LeaseState = Field(description="held, or released: P has not freed the blocks yet.")
    remaining_ms: int = Field(description="Until P frees the blocks without a renewal.")
    request_id: str | None = Field(description="Which keeps it; null: it is over, or its router did not answer.")


class LeaseListing:
    """Reads a lease store from threads, since its methods block."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    async def held(self, engine_id: str) -> list[LeaseStatus]:
        """See ``LeaseStore.held``; raises UnavailableError when the store does not answer."""
        try:
            return await asyncio.to_thread(self._store.held, engine_id)
        except LeaseStoreError as error:
            raise UnavailableError(f"The lease store does not answer: {error}", code="lease_store") from None
        except ValueError:
            return []


async def view_leases(keepers: Mapping[str, str], listing: LeaseListing, engine_ids: Sequence[str]) -> list[LeaseView]:
    """All leases of these engines. ``keepers``: request ids by lease id."""
    return [
        LeaseView(
            lease_id=lease.lease_id,
            engine_id=engine_id,
            state=lease.state,
            remaining_ms=lease.remaining_ms,
            request_id=keepers.get(lease.lease_id),
        )
        for engine_id in engine_ids
        for lease in await listing.held(engine_id)
    ]
