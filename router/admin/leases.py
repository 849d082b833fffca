"""``/admin/leases``: the leases on P's blocks, and the requests that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter
from pydantic import Field

from baton_serve.router.admin.answers import FromAllRouters, LocalKeepers
from baton_serve.router.admin.ids import known_or_given
from baton_serve.router.admin.lease_view import LeaseView, view_leases
from baton_serve.router.peers.asking import ask_all

if TYPE_CHECKING:
    from baton_serve.router.admin.lease_view import LeaseListing
    from baton_serve.router.admin.local import LocalRouter
    from baton_serve.router.peers.port import PeerRouters
    from baton_serve.router.pool import WorkerPool


@dataclass(kw_only=True)
class LeaseList(FromAllRouters):
    """Leases of all known engines, or of one."""

    leases: list[LeaseView]
    unreadable_engines: Annotated[
        list[str],
        Field(description="Ids of the engines whose leases are missing: Redis holds something else under their keys."),
    ]


def lease_routes(here: LocalRouter, peers: PeerRouters, pool: WorkerPool, listing: LeaseListing) -> APIRouter:
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
        for answer in (here.keepers(), *heard.answers.values()):
            keepers |= answer.keepers
        listed = await view_leases(keepers, listing, engines)
        return LeaseList(
            leases=listed.leases,
            unreadable_engines=listed.unreadable_engines,
            unreachable_routers=heard.unreachable,
        )

    return api
