"""One small HTTP GET over a connection of its own, for a handshake.

A general client costs the event loop 1 to 2 ms for each answer. A worker that connects to 32 engines at once would
decode nothing for as long as 50 ms; this client takes a tenth of that time.
"""

from __future__ import annotations

import asyncio

import msgspec

from baton_serve.core.net.client.connection import Connection
from baton_serve.core.net.client.errors import AnswerTooLarge, ConnectionLost, NotHttp
from baton_serve.core.net.tls import InternalTls


class BadAnswerError(Exception):
    """The answer is no HTTP answer, too long, or cut off. The message is one line that quotes nothing of the answer."""


class Place(msgspec.Struct, frozen=True):
    """The server to ask: ``host`` as the hand-off names it, and its ``addresses`` (at least one), best first.

    ``try_s``: seconds after which an address that has not accepted the connection is given up for the next one. The
    last address has no such limit.
    """

    host: str
    port: int
    addresses: tuple[str, ...]
    try_s: float
    #: None: without TLS.
    tls: InternalTls | None = None


class Answer(msgspec.Struct, frozen=True):
    """A status and a body, from ``address``."""

    address: str
    status: int
    body: bytes


async def get(place: Place, path: str, authorization: bytes, max_body_bytes: int) -> Answer:
    """Send a GET and return its answer. No timeout, redirects, proxies or name lookups; ``authorization`` may be empty.

    Raises OSError when no address can be reached and BadAnswerError. Cancelling it closes the connection at once.
    """
    address, connection = await _connect(place)
    try:
        answer = connection.send(_request(place, path, authorization))
        await answer.headers()
        return Answer(address, answer.status, await answer.read(max_body_bytes, None))
    except AnswerTooLarge:
        raise BadAnswerError(f"the answer has more than {max_body_bytes} bytes") from None
    except NotHttp as error:
        raise BadAnswerError(f"not an HTTP answer: {type(error.__cause__ or error).__name__}") from error
    except ConnectionLost as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise BadAnswerError("the answer is cut off") from error
    finally:
        connection.abort()


async def _connect(place: Place) -> tuple[str, Connection]:
    """Try the addresses one by one, so that a host costs one socket at a time. Raises the last address's OSError."""
    *others, last = place.addresses
    for address in others:
        try:
            async with asyncio.timeout(place.try_s):
                return address, await _open(place, address)
        except OSError:  # TimeoutError is one
            continue
    return last, await _open(place, last)


async def _open(place: Place, address: str) -> Connection:
    loop = asyncio.get_running_loop()
    connection = Connection([], set())
    tls = {} if place.tls is None else place.tls.to(place.host)
    await loop.create_connection(connection.as_protocol, address, place.port, **tls)
    return connection


def _request(place: Place, path: str, authorization: bytes) -> bytes:
    name = f"[{place.host}]" if ":" in place.host else place.host
    head = f"GET {path} HTTP/1.1\r\nHost: {name}:{place.port}\r\nConnection: close\r\n".encode()
    if authorization:
        head += b"Authorization: " + authorization + b"\r\n"
    return head + b"\r\n"
