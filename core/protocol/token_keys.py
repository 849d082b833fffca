"""Keys made of the internal token, one for each use, so that signatures do not reveal the token.

Each is HMAC-SHA256 of the name of its use under the token, as in the extraction step of HKDF (RFC 5869).
"""

from __future__ import annotations

import hmac


def announcement_key(token: str) -> bytes:
    """The key that signs announcements (``core/registry/signature.py``)."""
    return _derive(token, b"baton announcement 1")


def hello_key(token: str) -> bytes:
    """The key of the proof that a process knows the token (``hello.py``)."""
    return _derive(token, b"baton hello 1")


def vllm_handshake_key(token: str) -> bytes:
    """The key of the proofs in handshakes of vLLM servers (``vllm_handshake.py``)."""
    return _derive(token, b"baton vllm handshake 1")


def clients_key(token: str) -> bytes:
    """The key of what tells clients apart (``client_key.py``)."""
    return _derive(token, b"baton clients 1")


def _derive(token: str, use: bytes) -> bytes:
    return hmac.digest(token.encode(), use, "sha256")
