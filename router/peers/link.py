"""A link: one ``GET /internal/alive/{router_id}`` whose answer does not end while that process lives.

It has a connection of its own: the verdict depends on whether connecting is refused, and a connection pool would
silently retry. The path names the router, since another one may have been started on its port by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any
from urllib.parse import urlsplit

from baton_serve.core.net.sockets import set_tcp_options
from baton_serve.core.net.tls import InternalTls, why
from baton_serve.core.protocol.hello import HELLO_PATH, NUM_PROOF_CHARS, is_proof, new_nonce, router_proof
from baton_serve.core.protocol.router import RouterRecord

#: Path of a link, without the id of the router that has to answer.
ALIVE_PATH = "/internal/alive/"
#: TCP keep-alive, so that links to a vanished host end: idle seconds, seconds between probes, number of probes.
_PROBES = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}


async def until_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is over, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class LinkRefused(Exception):
    """The port refuses connections, or another router listens there."""


class NoLink(Exception):
    """No connection or no answer in time, or an answer that is not a link."""


class PeerLink:
    """An open link. ``close`` it in every case."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ended(self) -> None:
        """Wait until the connection ends; the other router may then be gone."""
        with contextlib.suppress(OSError):
            while await self._reader.read(1 << 16):
                pass

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def open_link(
    record: RouterRecord,
    headers: Sequence[tuple[str, str]],
    timeout_s: float,
    key: bytes | None = None,
    tls: InternalTls | None = None,
) -> PeerLink:
    """Open a link to that router, and return it once the router has answered. Raises LinkRefused and NoLink.

    With a ``key`` (``core/protocol/hello.py``) the router must first prove, on the same connection, that it knows the
    internal token; only then are ``headers``, which carry the token, sent.
    """
    place = urlsplit(record.internal_url)
    options = _tls_options(place.scheme, place.hostname or "", tls)
    path = ALIVE_PATH + record.router_id
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(place.hostname, place.port, **options)
            set_tcp_options(writer.get_extra_info("socket"), _PROBES)
            if key is not None:
                await _prove(record, key, reader, writer)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: {place.netloc}\r\n{lines}\r\n".encode("latin-1"))
            head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise LinkRefused if status == [b"404"] else NoLink("it answers something else")
    except BaseException as error:
        if writer is not None:
            writer.close()
        if isinstance(error, ConnectionRefusedError):
            raise LinkRefused from None
        if isinstance(error, ssl.SSLError):
            raise NoLink(why(error)) from None
        if isinstance(error, TimeoutError | OSError | asyncio.IncompleteReadError | asyncio.LimitOverrunError):
            raise NoLink(type(error).__name__) from None
        raise
    return PeerLink(reader, writer)


async def _prove(record: RouterRecord, key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Have the router prove that it knows the token. Raises NoLink, and the errors of reading."""
    nonce = new_nonce()
    writer.write(f"GET {HELLO_PATH}{nonce} HTTP/1.1\r\nhost: {urlsplit(record.internal_url).netloc}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    if not is_proof(await reader.readexactly(NUM_PROOF_CHARS), router_proof(key, record, nonce)):
        raise NoLink("it did not prove that it knows the internal token")


def _tls_options(scheme: str, host: str, tls: InternalTls | None) -> dict[str, Any]:
    """Options for ``open_connection``. Raises NoLink if only one of the two routers speaks TLS."""
    if (scheme == "https") is not (tls is not None):
        raise NoLink("it speaks TLS, which is not set up here" if tls is None else "it does not speak TLS")
    return {} if tls is None else tls.to(host)
