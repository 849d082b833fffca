"""``/admin/requests`` and ``/admin/abort``: list and abort the live requests of all routers, and say how the last ones
ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query

from baton_serve.core.protocol.errors import BadRequestError, NotFoundError, UpstreamError
from baton_serve.core.protocol.request_ids import owner_of
from baton_serve.router.admin.answers import FromAllRouters, LocalAborted, LocalEnded, LocalRequests
from baton_serve.router.admin.ids import one_request, worker_or_given
from baton_serve.router.admin.local import AbortFilter, LocalRouter
from baton_serve.router.peers.asking import ask_all
from baton_serve.router.peers.port import PeerRouters
from baton_serve.router.pool import WorkerPool
from baton_serve.router.request.ended import Outcome, newest_of


@dataclass
class RequestList(LocalRequests, FromAllRouters):
    """Live requests of all routers, oldest first."""


@dataclass
class EndedList(LocalEnded, FromAllRouters):
    """Ended requests of all routers, newest first; a bounded number of each outcome."""


@dataclass
class Aborted(LocalAborted, FromAllRouters):
    """Ids of the requests that were aborted."""


def request_routes(here: LocalRouter, peers: PeerRouters, pool: WorkerPool) -> APIRouter:
    """The routes to list live and ended requests, abort one, and abort all that match."""
    api = APIRouter()

    @api.get("/requests")
    async def requests() -> RequestList:
        """Live requests of all routers."""
        heard = await ask_all(peers, LocalRequests, "GET", "/internal/requests")
        rows = [row for answer in (await here.requests(), *heard.answers.values()) for row in answer.requests]
        rows.sort(key=lambda row: -row.age_ms)
        return RequestList(rows, unreachable_routers=heard.unreachable)

    @api.get("/requests/ended")
    async def ended(
        outcome: Annotated[Outcome | None, Query(description="Only those that ended so.")] = None,
    ) -> EndedList:
        """The requests that ended last, of all routers."""
        heard = await ask_all(peers, LocalEnded, "GET", "/internal/requests/ended")
        rows = [row for answer in (await here.ended(), *heard.answers.values()) for row in answer.ended]
        shown = newest_of(row for row in rows if outcome is None or row.outcome == outcome)
        return EndedList(shown, unreachable_routers=heard.unreachable)

    @api.post("/requests/{request_id}/abort")
    async def abort(request_id: str) -> LocalAborted:
        """End one request now, in whatever state it is and whichever router has it: by its id, the beginning of it, or
        the id of its answer.
        """
        request_id = await one_request(here, peers, request_id)
        owner = owner_of(request_id)
        return await (here.abort(request_id) if owner == here.router_id else _abort_there(peers, owner, request_id))

    @api.post("/abort")
    async def abort_matching(wanted: AbortFilter) -> Aborted:
        """End every request that matches."""
        if wanted == AbortFilter():
            raise BadRequestError('An empty filter must be explicit: {"all": true}.', code="empty_filter")
        if wanted.worker is not None:
            wanted.worker = worker_or_given(pool, wanted.worker)
        own = await here.abort_matching(wanted)
        heard = await ask_all(peers, LocalAborted, "POST", "/internal/abort", wanted.model_dump_json().encode())
        aborted = [request_id for answer in (own, *heard.answers.values()) for request_id in answer.aborted]
        return Aborted(aborted, unreachable_routers=heard.unreachable)

    return api


async def _abort_there(peers: PeerRouters, owner: str, request_id: str) -> LocalAborted:
    """Have the router that owns the request abort it. Raises NotFoundError, and UpstreamError if that router gives no
    clear answer.
    """
    answer = await peers.ask(owner, "POST", f"/internal/requests/{quote(request_id, safe='')}/abort")
    if answer is None or answer.status == 404:
        raise NotFoundError("No live request has that id.", code="request_not_found")
    if not answer.ok:
        why = answer.error or f"it answered {answer.status}"
        raise UpstreamError(f"Router {owner} has that request: {why}.", code="router_unreachable")
    return LocalAborted([request_id])
