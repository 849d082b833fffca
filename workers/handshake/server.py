"""Answers ``GET /kv/handshake/{rank}`` on the internal port with what a peer needs to read a local rank's memory."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import SecretStr

from baton_serve.core.net.access.keys import Keys
from baton_serve.core.process.log_pace import OncePerMinute
from baton_serve.core.protocol.handshake import WIRE_VERSION, Handshake, RankMetadata

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/msgpack"
#: A rank in the path. Not a typed path parameter, because FastAPI would answer 422 before the token is checked.
_RANK = re.compile(r"0|[1-9][0-9]{0,3}")


def handshake_bytes(metadata: RankMetadata, compatibility_hash: str) -> bytes:
    """The answer for one rank, which is made once because it never changes."""
    handshake = Handshake(
        wire_version=WIRE_VERSION,
        engine_id=metadata.engine_id,
        compatibility_hash=compatibility_hash,
        metadata=msgspec.msgpack.encode(metadata),
    )
    return msgspec.msgpack.encode(handshake)


def handshake_router(
    get_answer: Callable[[int], bytes | None],
    token: SecretStr | None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> APIRouter:
    """The route, for the internal application.

    ``get_answer`` returns ``handshake_bytes`` for a rank, or None if there is no such rank (404). With a ``token``,
    requests without ``Authorization: Bearer <token>`` are answered 401, whatever rank they ask for.
    """
    router = APIRouter()
    refused, keys = OncePerMinute(clock), Keys([token])

    @router.get("/kv/handshake/{rank}", response_class=Response)
    async def handshake(rank: str, request: Request) -> Response:
        if not keys.match_bearer(dict(request.scope["headers"]).get(b"authorization")):
            peer = request.client.host if request.client else "unknown"
            if refused.due(peer):
                logger.warning("a handshake from %s without the internal token was refused", peer)
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        answer = get_answer(int(rank)) if _RANK.fullmatch(rank) else None
        return Response(status_code=404) if answer is None else Response(answer, media_type=MEDIA_TYPE)

    return router
