"""Answers ``GET /kv/handshake/{rank}`` on the internal port: how to read the memory of a local rank."""

from __future__ import annotations

import hmac
import logging
import re
import time
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request, Response

from core.protocol.handshake import WIRE_VERSION, Handshake, RankMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

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


def bearer_matches(header: str | None, token: str | None) -> bool:
    """Whether the ``Authorization`` header has the token, compared in constant time; always True without a token."""
    if token is None:
        return True
    # Starlette decodes headers as Latin-1; this restores the bytes.
    return hmac.compare_digest((header or "").encode("latin-1"), f"Bearer {token}".encode())


def handshake_router(
    get_answer: Callable[[int], bytes | None],
    token: str | None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> APIRouter:
    """The route, for the internal application.

    ``get_answer`` returns ``handshake_bytes`` for a rank, or None if there is no such rank (404). With a ``token``,
    requests without ``Authorization: Bearer <token>`` are answered 401, whatever rank they ask for.
    """
    router = APIRouter()
    refused = OncePerMinute(clock)

    @router.get("/kv/handshake/{rank}", response_class=Response)
    async def handshake(rank: str, request: Request) -> Response:
        if not bearer_matches(request.headers.get("authorization"), token):
            peer = request.client.host if request.client else "unknown"
            if refused.first(peer):
                logger.warning("a handshake from %s without the internal token was refused", peer)
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        answer = get_answer(int(rank)) if _RANK.fullmatch(rank) else None
        return Response(status_code=404) if answer is None else Response(answer, media_type=MEDIA_TYPE)

    return router


class OncePerMinute:
    """Allows one log line per key and minute, so that refused requests cannot fill the log. Bounded memory."""

    _MAX_KEYS = 1000

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def first(self, key: str) -> bool:
        """Whether a minute has passed since this last returned True for ``key``."""
        now = self._clock()
        last = self._last.get(key)
        if last is not None and now - last < 60.0:
            return False
        self._last.pop(key, None)
        if len(self._last) >= self._MAX_KEYS:
            self._last.pop(next(iter(self._last)))
        self._last[key] = now
        return True
