"""The handshake of vLLM servers with Baton's connector: the answers of vLLM's side channel, over HTTP, with proofs.

The reader dials an address that came with a request, so a client may have named it, and it must not be sent the token.
Instead each side proves that it knows the token, by HMAC-SHA256 under a key made of it for this use only:

1. ``GET /kv/vllm/challenge``: the server answers 32 hex digits, which it drew when it started. Open to every client.
2. ``GET /kv/vllm/handshake/<pp>/<tp>`` with ``Authorization: Baton <nonce>.<proof>``. The reader draws the nonce. Its
   proof covers the address that it has dialed, which it sends as ``Host``, the challenge, the nonce and the path.
3. The server answers what the reader asks for only if the proof is right and the address is its own: a proof that the
   reader sent to another server cannot be used here. The answer begins with the server's own proof, which covers the
   reader's proof and the whole answer: so it is no earlier answer, and was not changed.

A recorded question gets the recorded answer again until the server starts anew, since the answer never changes.

History
-------
1: first version.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import TypeAlias

import msgspec

#: The field of ``kv_transfer_params`` beside ``remote_host`` and ``remote_port`` that says where P answers handshakes.
PORT_FIELD = "handshake_port"
CHALLENGE_PATH = "/kv/vllm/challenge"
NONCE = re.compile(r"[0-9a-f]{32}")
SCHEME = "Baton"
_RANK_PATH = re.compile(r"/kv/vllm/handshake/(0|[1-9][0-9]{0,3})/(0|[1-9][0-9]{0,3})")
_CREDENTIALS = re.compile(r"Baton ([0-9a-f]{32})\.([0-9a-f]{64})")
_NUM_SEAL_BYTES = 32

#: The ranks (pp, tp) of an engine.
Rank: TypeAlias = "tuple[int, int]"


class NotProvenError(Exception):
    """The answer is not of a process that knows the token, or was changed on its way."""


class RankFacts(msgspec.Struct, frozen=True):
    """What one rank answers. ``payload``: the first frame of vLLM's side channel.

    ``clock_s``: ``time.perf_counter()`` of the answering process, as in the second frame.
    """

    payload: bytes
    clock_s: float


_decoder = msgspec.msgpack.Decoder(RankFacts)


def new_nonce() -> str:
    """A random nonce or challenge."""
    return secrets.token_hex(16)


def place(host: str, port: int) -> str:
    """The address as it is dialed and proven."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def rank_path(rank: Rank) -> str:
    """Where a rank is asked for."""
    return f"/kv/vllm/handshake/{rank[0]}/{rank[1]}"


def rank_of(path: str) -> Rank | None:
    """The rank that a path asks for; None for any other path."""
    match = _RANK_PATH.fullmatch(path)
    return None if match is None else (int(match[1]), int(match[2]))


def ask_proof(key: bytes, dialed: str, challenge: str, nonce: str, path: str) -> str:
    """The proof of a reader that knows the token."""
    return hmac.digest(key, "\n".join(("ask", dialed, challenge, nonce, path)).encode(), "sha256").hex()


def authorization(nonce: str, proof: str) -> str:
    """The header of a question."""
    return f"{SCHEME} {nonce}.{proof}"


def proven(key: bytes, given: str, dialed: str, challenge: str, path: str) -> str | None:
    """The proof in a header ``Authorization``, if it is right; None: it is not. Compared in constant time."""
    match = _CREDENTIALS.fullmatch(given)
    if match is None:
        return None
    expected = ask_proof(key, dialed, challenge, match[1], path)
    return expected if hmac.compare_digest(match[2], expected) else None


def seal(key: bytes, proof: str, facts: RankFacts) -> bytes:
    """The answer to the question with this proof."""
    content = msgspec.msgpack.encode(facts)
    return _seal_of(key, proof, content) + content


def unseal(key: bytes, proof: str, answer: bytes) -> RankFacts:
    """The facts in an answer to the question with this proof. Raises NotProvenError."""
    given, content = answer[:_NUM_SEAL_BYTES], answer[_NUM_SEAL_BYTES:]
    if not hmac.compare_digest(given, _seal_of(key, proof, content)):
        raise NotProvenError
    return _decoder.decode(content)


def _seal_of(key: bytes, proof: str, content: bytes) -> bytes:
    return hmac.digest(key, b"answer\n" + proof.encode() + b"\n" + content, "sha256")
