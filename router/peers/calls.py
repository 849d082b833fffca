"""Calls to the internal ports of other routers, bounded in time and size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from baton_serve.core.net.client.errors import AnswerTooLarge, CallError, CallTimeout, ConnectError
from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.peers.port import PeerAnswer

#: Most seconds for the connection, for the answer, and for both together.
CALL_TIMEOUT_S = 2.0
#: Eight times a list of 16384 requests with half a kilobyte each.
_MAX_ANSWER_BYTES = 64 << 20


async def call(
    upstream: HttpClient, headers: Sequence[tuple[str, str]], record: RouterRecord, method: str, path: str, body: bytes
) -> PeerAnswer:
    """Call one router: returns its answer, or why there is none. Never raises. ``headers`` carry the internal token."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            answer = await upstream.request(method, record.internal_url, path, headers, body, CALL_TIMEOUT_S)
            try:
                whole = await answer.read(_MAX_ANSWER_BYTES, CALL_TIMEOUT_S)
            finally:
                answer.close()
    except (CallError, TimeoutError) as error:
        return PeerAnswer(record.router_id, error=_why(error))
    return PeerAnswer(record.router_id, answer.status, whole)


def _why(error: Exception) -> str:
    if isinstance(error, ConnectError):
        return "it does not accept connections"
    if isinstance(error, AnswerTooLarge):
        return "its answer was too large"
    return "it did not answer in time" if isinstance(error, CallTimeout | TimeoutError) else "the connection broke"
