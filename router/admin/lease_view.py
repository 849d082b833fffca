"""The listing behind ``GET /admin/leases``: the store's leases, and the request that holds each."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from baton_serve.core.leases.store import LeaseState, LeaseStoreError, LeaseStoreUnreachableError
from baton_serve.core.protocol.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton_serve.core.leases.store import LeaseStatus, LeaseStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease that has not ended."""

    lease_id: str
    engine_id: str
    state: Annotated[LeaseState, Field(description="held, or released: P has not freed the blocks yet.")]
    remaining_ms: Annotated[int, Field(description="Until P frees the blocks without a renewal.")]
    request_id: Annotated[
        str | None, Field(description="Which keeps it; null: it is over, or its router did not answer.")
    ]


@dataclass(frozen=True)
class Listed:
    """The leases of some engines, and the ids of engines whose leases could not be read."""

    leases: list[LeaseView] = field(default_factory=list)
    unreadable_engines: list[str] = field(default_factory=list)


class LeaseListing:
    """Reads a lease store from threads, since its methods block."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    async def held(self, engine_id: str) -> list[LeaseStatus]:
        """See ``LeaseStore.held``. Raises UnavailableError when the store does not answer, and LeaseStoreError when it
        cannot read the engine's leases, because another program has written under the engine's key.
        """
        try:
            return await asyncio.to_thread(self._store.held, engine_id)
        except LeaseStoreUnreachableError as error:
            raise UnavailableError(f"The lease store does not answer: {error}", code="lease_store") from None
        except ValueError:
            return []


async def view_leases(keepers: Mapping[str, str], listing: LeaseListing, engine_ids: Sequence[str]) -> Listed:
    """All leases of these engines. ``keepers``: request ids by lease id. Raises UnavailableError."""
    listed = Listed()
    for engine_id in engine_ids:
        try:
            held = await listing.held(engine_id)
        except LeaseStoreError as error:
            logger.warning("the leases of engine %s cannot be listed: %s", engine_id, error)
            listed.unreadable_engines.append(engine_id)
        else:
            listed.leases.extend(_view(engine_id, lease, keepers) for lease in held)
    return listed


def _view(engine_id: str, lease: LeaseStatus, keepers: Mapping[str, str]) -> LeaseView:
    return LeaseView(
        lease_id=lease.lease_id,
        engine_id=engine_id,
        state=lease.state,
        remaining_ms=lease.remaining_ms,
        request_id=keepers.get(lease.lease_id),
    )
