"""``/admin/requests/ended``: the requests that ended last, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from baton_serve.router.admin.answers import FromAllRouters, LocalEnded
from baton_serve.router.peers.asking import ask_all
from baton_serve.router.request.ended import Outcome, newest_of

if TYPE_CHECKING:
    from baton_serve.router.admin.local import LocalRouter
    from baton_serve.router.peers.port import PeerRouters


@dataclass
class EndedList(LocalEnded, FromAllRouters):
    """Ended requests of all routers, newest first; a bounded number of each outcome."""


def ended_routes(here: LocalRouter, peers: PeerRouters) -> APIRouter:
    """The route of the listing."""
    api = APIRouter()

    @api.get("/requests/ended")
    async def ended(
        outcome: Annotated[Outcome | None, Query(description="Only those that ended so.")] = None,
    ) -> EndedList:
        """The requests that ended last, of all routers."""
        heard = await ask_all(peers, LocalEnded, "GET", "/internal/requests/ended")
        rows = [row for answer in (here.ended(), *heard.answers.values()) for row in answer.ended]
        shown = newest_of(row for row in rows if outcome is None or row.outcome == outcome)
        return EndedList(shown, unreachable_routers=heard.unreachable)

    return api
