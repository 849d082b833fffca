"""Asks vLLM servers that have Baton's connector for their handshakes (``core/protocol/vllm_handshake.py``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from baton_serve.core.net.client.connection import Connection
from baton_serve.core.net.client.errors import CallError, ConnectionLost, NotHttp
from baton_serve.core.protocol.addresses import is_host
from baton_serve.core.protocol.vllm_handshake import (
    CHALLENGE_PATH,
    NONCE,
    NotProvenError,
    Rank,
    RankFacts,
    ask_proof,
    authorization,
    new_nonce,
    place,
    rank_path,
    unseal,
)

#: Longest wait for the connection with the challenge, and for each answer, seconds: as vLLM's for its side channel.
TIMEOUT_S = 5.0
#: Bytes of the largest answer. A vLLM server's has some thousands, and tens of bytes more for each region of memory.
MAX_ANSWER_BYTES = 16 << 20
#: Bytes of the answers of all ranks together.
MAX_ANSWERS_BYTES = 64 << 20
#: Bytes of the largest answer of a server that has proven nothing yet.
_MAX_CHALLENGE_BYTES = 256


class HandshakeReason(StrEnum):
    """Why a server did not answer a handshake."""

    NO_ANSWER = "no_answer"
    #: The server does not take this proof, or does not give one: it has another token.
    OTHER_TOKEN = "other_token"
    #: The server has another address than the one that was dialed.
    OTHER_ADDRESS = "other_address"
    NO_SUCH_RANK = "no_such_rank"
    #: The server is no such server.
    NOT_HANDSHAKES = "not_handshakes"


class HandshakeFailedError(Exception):
    """A server did not answer a handshake. The message is a sentence for people, without any secret."""

    def __init__(self, reason: HandshakeReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Handshake(NamedTuple):
    """The payloads of all ranks that were asked, and what to add to ``clock()`` here to have the clock there."""

    payloads: dict[Rank, bytes]
    clock_offset_s: float


async def ask(
    host: str, port: int, key: bytes, ranks: Iterable[Rank], *, clock: Callable[[], float] = time.perf_counter
) -> Handshake:
    """Ask for ``ranks``, at least one, one after the other on one connection. Raises HandshakeFailedError.

    Nothing but proofs for this very address is sent. Cancelling it closes the connection.
    """
    if not is_host(host) or not 0 < port < 65536:
        raise HandshakeFailedError(HandshakeReason.NO_ANSWER, "what is named for handshakes is no host and port")
    dialed = place(host, port)
    connection = Connection([], set())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(connection.as_protocol, host, port)
            challenge = await _challenge(connection, dialed)
        payloads, best_s, offset_s = {}, float("inf"), 0.0
        left_bytes = MAX_ANSWERS_BYTES
        for rank in ranks:
            began_s = clock()
            async with asyncio.timeout(TIMEOUT_S):
                facts = await _facts(connection, dialed, key, challenge, rank)
            ended_s = clock()
            payloads[rank] = facts.payload
            left_bytes -= len(facts.payload)
            if left_bytes < 0:
                what = f"the ranks behind {dialed} say more than {MAX_ANSWERS_BYTES} bytes"
                raise HandshakeFailedError(HandshakeReason.NOT_HANDSHAKES, what)
            # Of several answers the one that came fastest says best when its clock was read.
            if ended_s - began_s < best_s:
                best_s, offset_s = ended_s - began_s, facts.clock_s - (began_s + ended_s) / 2
    except TimeoutError:
        raise HandshakeFailedError(
            HandshakeReason.NO_ANSWER, f"{dialed} does not answer handshakes within {TIMEOUT_S:g} s"
        ) from None
    except NotHttp:
        raise _not_handshakes(dialed) from None
    except (OSError, CallError) as error:
        why = error.__cause__ if isinstance(error, ConnectionLost) and error.__cause__ else error
        raise HandshakeFailedError(HandshakeReason.NO_ANSWER, f"{dialed} does not answer handshakes: {why}") from error
    finally:
        connection.abort()
    return Handshake(payloads, offset_s)


async def _challenge(connection: Connection, dialed: str) -> str:
    status, body = await _get(connection, dialed, CHALLENGE_PATH, "", _MAX_CHALLENGE_BYTES)
    challenge = body.decode("latin-1")
    if status != 200 or not NONCE.fullmatch(challenge):
        raise _not_handshakes(dialed)
    return challenge


async def _facts(connection: Connection, dialed: str, key: bytes, challenge: str, rank: Rank) -> RankFacts:
    path, nonce = rank_path(rank), new_nonce()
    proof = ask_proof(key, dialed, challenge, nonce, path)
    header = f"Authorization: {authorization(nonce, proof)}\r\n"
    status, body = await _get(connection, dialed, path, header, MAX_ANSWER_BYTES)
    if status != 200:
        raise _refused(dialed, status, rank)
    try:
        return unseal(key, proof, body)
    except (NotProvenError, msgspec.DecodeError, UnicodeDecodeError):
        raise HandshakeFailedError(
            HandshakeReason.OTHER_TOKEN, f"{dialed} answers a handshake without a proof that it has our internal token"
        ) from None


async def _get(connection: Connection, dialed: str, path: str, header: str, max_bytes: int) -> tuple[int, bytes]:
    answer = connection.send(f"GET {path} HTTP/1.1\r\nHost: {dialed}\r\n{header}\r\n".encode())
    await answer.headers()
    return answer.status, await answer.read(max_bytes, None)


def _refused(dialed: str, status: int, rank: Rank) -> HandshakeFailedError:
    if status == 401:
        return HandshakeFailedError(HandshakeReason.OTHER_TOKEN, f"{dialed} has another internal token than we have")
    if status == 403:
        return HandshakeFailedError(
            HandshakeReason.OTHER_ADDRESS,
            f"the vLLM server at {dialed} answers handshakes under another address: name it as its "
            "VLLM_NIXL_SIDE_CHANNEL_HOST does",
        )
    if status == 404:
        return HandshakeFailedError(HandshakeReason.NO_SUCH_RANK, f"{dialed} has no rank {rank}")
    return HandshakeFailedError(HandshakeReason.NO_ANSWER, f"{dialed} answers a handshake with {status}")


def _not_handshakes(dialed: str) -> HandshakeFailedError:
    return HandshakeFailedError(
        HandshakeReason.NOT_HANDSHAKES, f"what answers at {dialed} is no vLLM server with handshakes over HTTP"
    )
