"""``/admin/routers``: the routers that share one Redis."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from baton_serve.router.peers.asking import ask_all
from baton_serve.router.peers.port import PeerRouters


class RouterView(BaseModel):
    """One router."""

    id: str
    url: str = Field(description="Where clients reach it. Empty for a router that works alone.")
    group: str = Field(description="Processes that share one port have the same; empty: it shares its port with none.")
    started_s: int = Field(description="Alive since: Unix time in seconds by its own clock; 0: not told.")
    is_this: bool = Field(description="It is the one that answers here.")
    reachable: bool = Field(description="It answered now.")


class RouterList(BaseModel):
    """All routers, by id."""

    routers: list[RouterView]


def router_routes(peers: PeerRouters) -> APIRouter:
    """The route of the listing."""
    api = APIRouter()

    @api.get("/routers")
    async def routers() -> RouterList:
        """This router and the others on its Redis that are not known to be dead."""
        own = peers.record
        others = list(peers)
        heard = await ask_all(peers, dict[str, object], "GET", "/health")
        there = {answer.get("router_id") for answer in heard.answers.values()}
        rows = [
            RouterView(
                id=record.router_id,
                url=record.url,
                group=record.group,
                started_s=record.started_s,
                is_this=record is own,
                reachable=record is own or record.router_id in there,
            )
            for record in (own, *others)
        ]
        return RouterList(routers=sorted(rows, key=lambda row: row.id))

    return api
