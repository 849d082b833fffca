"""How a process proves that it knows the internal token, before another process sends it the token or a prompt.

``GET /internal/hello/<nonce>`` on the internal port of a worker or a router, open to every client. The answer is 64 hex
digits: HMAC-SHA256, under a key made of the token for this use only, of the kind of process, its ids, its two base URLs
as it announces them, and the nonce, one a line. A process that forwards the question to another one gets a proof for
the URLs of the other one, not for its own.

History
-------
1: first version.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Protocol

from baton_serve.core.protocol.router import RouterRecord

#: The path, without the nonce at its end.
HELLO_PATH = "/internal/hello/"
NONCE = re.compile(r"[0-9a-f]{32}")
NUM_PROOF_CHARS = 64


class WorkerIdentity(Protocol):
    """The fields of a worker that the proof covers."""

    @property
    def worker_id(self) -> str: ...

    @property
    def engine_id(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def internal_url(self) -> str: ...


def new_nonce() -> str:
    """A random nonce, so that an answer to an earlier question proves nothing."""
    return secrets.token_hex(16)


def worker_proof(key: bytes, worker: WorkerIdentity, nonce: str) -> str:
    """The proof of a worker that knows the token."""
    return _proof(key, "worker", worker.worker_id, worker.engine_id, worker.url, worker.internal_url, nonce)


def router_proof(key: bytes, record: RouterRecord, nonce: str) -> str:
    """The proof of a router."""
    return _proof(key, "router", record.router_id, record.url, record.internal_url, nonce)


def is_proof(given: bytes, expected: str) -> bool:
    """Whether the proof is as expected, compared in constant time."""
    return hmac.compare_digest(given, expected.encode())


def _proof(key: bytes, *lines: str) -> str:
    return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()
