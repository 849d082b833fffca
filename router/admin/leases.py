"""``/admin/leases``: the leases on P's blocks, and the requests that hold them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from baton_serve.core.leases.store import (
    LeaseState,
    LeaseStatus,
    LeaseStore,
    LeaseStoreError,
    LeaseStoreUnreachableError,
)
from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.router.admin.answers import FromAllRouters, LocalKeepers
from baton_serve.router.admin.ids import known_or_given
from baton_serve.router.admin.local import LocalRouter
from baton_serve.router.peers.asking import ask_all
from baton_serve.router.peers.port import PeerRouters
from baton_serve.router.pool import WorkerPool

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


@dataclass(kw_only=True)
class LeaseList(FromAllRouters):
    """Leases of all known engines, or of one."""

    leases: list[LeaseView]
    unreadable_engines: Annotated[
        list[str],
        Field(description="Ids of the engines whose leases are missing: Redis holds something else under their keys."),
    ]


def lease_routes(here: LocalRouter, peers: PeerRouters, pool: WorkerPool, store: LeaseStore) -> APIRouter:
    """The route of the listing."""
    api = APIRouter()

    @api.get("/leases")
    async def leases(
        engine: Annotated[str | None, Field(description="Only of this engine: its id or the beginning of it.")] = None,
    ) -> LeaseList:
        """Every lease of the known engines, and the request of any router that holds it."""
        engines = sorted({worker.engine_id for worker in pool if worker.engine_id})
        if engine:
            engines = [known_or_given(engines, engine, "engine")]
        heard = await ask_all(peers, LocalKeepers, "GET", "/internal/keepers")
        keepers: dict[str, str] = {}
        for answer in (await here.keepers(), *heard.answers.values()):
            keepers |= answer.keepers
        listed = LeaseList(leases=[], unreadable_engines=[], unreachable_routers=heard.unreachable)
        for engine_id in engines:
            try:
                held = await _held(store, engine_id)
            except LeaseStoreError as error:
                logger.warning("the leases of engine %s cannot be listed: %s", engine_id, error)
                listed.unreadable_engines.append(engine_id)
                continue
            listed.leases += (
                LeaseView(one.lease_id, engine_id, one.state, one.remaining_ms, keepers.get(one.lease_id))
                for one in held
            )
        return listed

    return api


async def _held(store: LeaseStore, engine_id: str) -> list[LeaseStatus]:
    """See ``LeaseStore.held``, which blocks. Raises UnavailableError when the store does not answer, and
    LeaseStoreError when it cannot read the engine's leases, because another program has written under its key.
    """
    try:
        return await asyncio.to_thread(store.held, engine_id)
    except LeaseStoreUnreachableError as error:
        raise UnavailableError(f"The lease store does not answer: {error}", code="lease_store") from None
    except ValueError:
        return []
