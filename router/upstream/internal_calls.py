"""Calls to the internal ports of workers.

They are rare, and often made just when a worker has died: its port may be another's by now. So each shows the internal
token only after whoever listens there has proven, in the same moment, that it knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.net.client.errors import CallError
from core.protocol.token_keys import hello_key
from router.upstream.hello import WorkerHello

if TYPE_CHECKING:
    from core.protocol.hello import WorkerIdentity
    from router.upstream.port import Upstream

_MAX_ANSWER_BYTES = 1 << 16


class UnprovenError(CallError):
    """Who listens there did not prove that it knows the internal token."""


class InternalCalls:
    """Calls of this router to workers that have an internal port."""

    def __init__(self, upstream: Upstream, token: str | None = None) -> None:
        """``token``: the internal one. Without it nothing is proven, and nothing shown."""
        self._upstream = upstream
        self._headers = () if token is None else (("authorization", f"Bearer {token}"),)
        self._hello = None if token is None else WorkerHello(upstream, hello_key(token))

    async def post(self, worker: WorkerIdentity, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of the answer. Raises CallError. ``timeout_s`` is for each step, not for the whole."""
        if self._hello is not None and not await self._hello.proves(worker):
            raise UnprovenError("it did not prove that it knows the internal token")
        answer = await self._upstream.request("POST", worker.internal_url, path, self._headers, b"", timeout_s)
        try:
            return answer.status, await answer.read(_MAX_ANSWER_BYTES, timeout_s)
        finally:
            answer.close()
