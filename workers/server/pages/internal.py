"""The pages of the internal port, for routers. All but ``/health`` need the internal token."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import orjson
from fastapi import APIRouter, Depends, Path, Request, Response

from baton_serve.core.protocol import leases_at_p
from baton_serve.core.protocol.errors import ApiError, BadRequestError, PayloadTooLargeError
from baton_serve.core.protocol.hello import HELLO_PATH, NONCE, worker_proof
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.workers.engine.errors import EngineFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton_serve.core.protocol.hello import WorkerIdentity
    from baton_serve.core.protocol.worker import WorkerLoad
    from baton_serve.workers.engine.api import Engine
    from baton_serve.workers.handshake.peer_view import PeerView
    from baton_serve.workers.leases.engine_leases import EngineLeases
    from baton_serve.workers.server.access import Access
    from baton_serve.workers.server.pages.public import WorkerHealth

_lease_ids_of = msgspec.json.Decoder(leases_at_p.LeaseIds)

#: A router's id: the ids of all its requests end with it.
RouterId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]


PREFIX: Final = "/internal"


class LeavingError(ApiError):
    """The worker cannot be resumed, because its process is about to end."""

    status = 409
    type = "invalid_request_error"
    code = "worker_leaving"


def internal_pages(
    engine: Engine,
    leases: EngineLeases,
    access: Access,
    health: WorkerHealth,
    drain: Callable[[], None],
    resume: Callable[[], bool],
    load: Callable[[], WorkerLoad],
    peers: Callable[[], Mapping[str, PeerView]] = dict,
) -> APIRouter:
    """``GET /health``, ``GET /internal/state``, ``POST /internal/abort/{id}``, ``.../leases/release``, ``.../held``,
    ``.../routers/{id}/gone``, ``.../drain``, ``.../resume``.

    An abort ends the sequence of the request in any state, and the leases of its hand-offs, because the router that
    aborts has not read the answer with the lease ids. It answers ``{"aborted": false}`` if there is nothing to abort.
    ``gone`` does the same for all requests whose id ends with that router id (400 if it is not 12 hex digits): the
    router is dead, so no program reads their answers. It answers ``{"aborted": n, "leases": m}`` and may be repeated.
    ``leases/release`` ends leases that a router cannot release in the store, and ``leases/held`` says which are there
    (``core.protocol.leases_at_p``).
    ``drain`` begins draining, without ending the process. ``resume`` ends the drain; it returns False
    if the process is about to end, and the answer is 409. Both may be repeated. ``peers`` returns the remote engines.
    """
    router = APIRouter()
    guarded = APIRouter(prefix=PREFIX, dependencies=[Depends(access.check_bearer)])

    @router.head("/health")
    @router.get("/health")
    async def health_page() -> Response:
        return health.response()

    @guarded.get("/state")
    async def state() -> Response:
        stats = engine.stats()
        known = {"load": load(), "peers": list_peers(peers()), "tasks": len(asyncio.all_tasks())}
        known |= {"blocks": asdict(stats.pool), "counters": asdict(stats.counters)}
        return _json({"ledger": await _ledger(engine), **known})

    @guarded.post("/abort/{request_id}")
    async def abort(request_id: str) -> Response:
        ended = engine.abort(request_id)
        dropped = leases.drop_request(request_id)
        return _json({"aborted": ended or dropped})

    @guarded.post(leases_at_p.RELEASE_PATH.removeprefix(PREFIX))
    async def release(request: Request) -> Response:
        return _json(leases_at_p.Released(leases.release(await _lease_ids(request))))

    @guarded.post(leases_at_p.HELD_PATH.removeprefix(PREFIX))
    async def held(request: Request) -> Response:
        return _json(leases_at_p.Held(leases.held(await _lease_ids(request))))

    @guarded.post("/routers/{router_id}/gone")
    async def router_gone(router_id: RouterId) -> Response:
        aborted, dropped = engine.abort_all(router_id), leases.drop_all(router_id)
        return _json({"aborted": aborted, "leases": dropped})

    @guarded.post("/drain")
    async def begin_drain() -> Response:
        drain()
        return _json({"draining": True})

    @guarded.post("/resume")
    async def end_drain() -> Response:
        if not resume():
            raise LeavingError("The worker has been told to leave and takes no work any more.")
        return _json({"draining": False})

    router.include_router(guarded)
    return router


def hello_pages(worker: WorkerIdentity, token: str) -> APIRouter:
    """``GET /internal/hello/{nonce}``: this worker proves that it knows the internal token (``core.protocol.hello``).

    A caller needs no token for it: the caller sends its token only after this proof.
    """
    router = APIRouter()
    key = hello_key(token)

    @router.get(HELLO_PATH + "{nonce}", response_class=Response)
    async def hello(nonce: Annotated[str, Path(pattern=f"^{NONCE.pattern}$")]) -> Response:
        return Response(worker_proof(key, worker, nonce), media_type="text/plain")

    return router


async def _lease_ids(request: Request) -> list[str]:
    """The leases that a call is about. Raises PayloadTooLargeError and BadRequestError."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > leases_at_p.MAX_BYTES:
            raise PayloadTooLargeError(f"The body may have at most {leases_at_p.MAX_BYTES} bytes.")
    try:
        lease_ids = _lease_ids_of.decode(body).lease_ids
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The body does not name leases: {error}.") from None
    if len(lease_ids) > leases_at_p.MAX_LEASES:
        raise PayloadTooLargeError(f"A call may name at most {leases_at_p.MAX_LEASES} leases.")
    return lease_ids


async def _ledger(engine: Engine) -> str:
    """``ok``, or what is wrong with the block counts, which are copied here and counted in a thread."""
    try:
        await asyncio.to_thread(engine.audit())
    except EngineFault as fault:
        return str(fault)
    return "ok"


def list_peers(views: Mapping[str, PeerView]) -> list[dict[str, object]]:
    """The remote engines with their ids, the most recently used last."""
    return [
        {"engine_id": engine_id, **msgspec.structs.asdict(view), "refuses": view.refuses}
        for engine_id, view in views.items()
    ]


def _json(value: object) -> Response:
    return Response(orjson.dumps(value, default=msgspec.to_builtins), media_type="application/json")
