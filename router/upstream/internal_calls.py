"""Calls to the internal ports of workers.

Such calls are rare, and often made just after a worker has died, when another process may have its port. So each call
sends the internal token only after the process on that port has proven that it knows the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.router.upstream.hello import WorkerHello

if TYPE_CHECKING:
    from baton_serve.core.protocol.hello import WorkerIdentity
    from baton_serve.router.upstream.port import Upstream

#: Most bytes of an answer.
MAX_ANSWER_BYTES = 1 << 16


class UnprovenError(CallError):
    """The process on that port did not prove that it knows the internal token."""


class InternalCalls:
    """This router's calls to workers that have an internal port."""

    def __init__(self, upstream: Upstream, token: str | None = None) -> None:
        """``token`` is the internal token. Without it no proof is asked for, and no token is sent."""
        self._upstream = upstream
        self._headers = () if token is None else (("authorization", f"Bearer {token}"),)
        self._hello = None if token is None else WorkerHello(upstream, hello_key(token))

    async def post(self, worker: WorkerIdentity, path: str, timeout_s: float, body: bytes = b"") -> tuple[int, bytes]:
        """Returns status and body of the answer. Raises CallError. ``timeout_s`` is for each step of the call."""
        if self._hello is not None and not await self._hello.proves(worker):
            raise UnprovenError("it did not prove that it knows the internal token")
        answer = await self._upstream.request("POST", worker.internal_url, path, self._headers, body, timeout_s)
        try:
            return answer.status, await answer.read(MAX_ANSWER_BYTES, timeout_s)
        finally:
            answer.close()
