"""Calls to the internal ports of workers.

Such calls are rare, and often made just after a worker has died, when another process may have its port. So each call
sends the internal token only after the process on that port has proven that it knows the token.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.protocol.hello import HELLO_PATH, WorkerIdentity, is_proof, new_nonce, worker_proof
from baton_serve.core.protocol.token_keys import hello_key

AnswerT = TypeVar("AnswerT")

#: Most seconds to wait for a proof.
HELLO_TIMEOUT_S = 2.0
#: Most bytes of an answer.
MAX_ANSWER_BYTES = 1 << 16


class UnprovenError(CallError):
    """The process on that port did not prove that it knows the internal token."""


class WorkerHello:
    """Asks workers in the registry for the proof, before they are sent the token or a prompt."""

    def __init__(self, upstream: HttpClient, key: bytes) -> None:
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
            body = await answer.read(MAX_ANSWER_BYTES, HELLO_TIMEOUT_S)
        finally:
            answer.close()
        return answer.status == 200 and is_proof(body, worker_proof(self._key, worker, nonce))


class InternalCalls:
    """This router's calls to workers that have an internal port."""

    def __init__(self, upstream: HttpClient, token: str | None = None) -> None:
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

    async def ask(
        self,
        worker: WorkerIdentity,
        path: str,
        timeout_s: float,
        decoder: msgspec.json.Decoder[AnswerT],
        body: bytes = b"",
    ) -> AnswerT | int:
        """The decoded answer to a ``post`` that may take ``timeout_s`` in all.

        The status, if that is another than 200; 0: there is no answer, or none that ``decoder`` reads.
        """
        try:
            async with asyncio.timeout(timeout_s):
                status, answer = await self.post(worker, path, timeout_s, body)
            return decoder.decode(answer) if status == 200 else status
        except (CallError, TimeoutError, ValueError, RecursionError):
            return 0
