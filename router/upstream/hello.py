"""Has a worker prove that it knows the internal token, before this router sends the worker the token or a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.hello import HELLO_PATH, is_proof, new_nonce, worker_proof

if TYPE_CHECKING:
    from baton_serve.core.protocol.hello import WorkerIdentity
    from baton_serve.router.upstream.port import Upstream

#: Most seconds to wait for an answer.
HELLO_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 1 << 16


class WorkerHello:
    """Asks workers in the registry for the proof."""

    def __init__(self, upstream: Upstream, key: bytes) -> None:
        """``key`` is derived from the internal token (``core/protocol/token_keys.py``)."""
        self._upstream = upstream
        self._key = key

    async def proves(self, worker: WorkerIdentity) -> bool:
        """Whether the worker knows the token, and is the announced one. Raises CallError if there is no answer."""
        if not worker.internal_url:
            return False
        nonce = new_nonce()
        answer = await self._upstream.request("GET", worker.internal_url, HELLO_PATH + nonce, (), b"", HELLO_TIMEOUT_S)
        try:
            body = await answer.read(_MAX_ANSWER_BYTES, HELLO_TIMEOUT_S)
        finally:
            answer.close()
        return answer.status == 200 and is_proof(body, worker_proof(self._key, worker, nonce))
