"""``/admin/requests/ended``: the requests that ended last, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from baton_serve.router.admin.ended_view import Outcome
from baton_serve.router.admin.fan_out import FromAllRouters, ask_all
from baton_serve.router.admin.local import LocalEnded

if TYPE_CHECKING:
    from baton_serve.router.admin.local import Here
    from baton_serve.router.peers.port import PeerRouters


class EndedList(LocalEnded, FromAllRouters):
    """Ended requests of all routers, newest first; a bounded number of each outcome."""


def ended_routes(here: Here, peers: PeerRouters) -> APIRouter:
    """The route of the listing."""
    api = APIRouter()

    @api.get("/requests/ended")
    async def ended(
        outcome: Annotated[Outcome | None, Query(description="Only those that ended so.")] = None,
    ) -> EndedList:
        """The requests that ended last, of all routers."""
        heard = await ask_all(peers, LocalEnded, "GET", "/internal/requests/ended")
        rows = [row for answer in (here.ended(), *heard.answers) for row in answer.ended]
        rows = [row for row in rows if outcome is None or row.outcome == outcome]
        rows.sort(key=lambda row: row.ended_ms_ago)
        return EndedList(ended=rows, unreachable_routers=heard.unreachable)

    return api
