"""A handshake over TLS: D shows its token only to a P that our CA has certified."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.net.tls import Files, InternalTls
from baton_serve.workers.handshake.fetch import HandshakeFetcher
from baton_serve.workers.handshake.resolver import Resolver, look_up
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError
from tests.kits.certificates import Authority
from tests.kits.transfer.handshake_server import HASH, Server, target


def tls_of(authority: Authority, host: str, name: str | None = None) -> InternalTls:
    own = authority.of(host)
    return InternalTls(Files(own.certificate, own.key, own.ca), name)


def fetcher(tls: InternalTls | None) -> HandshakeFetcher:
    return HandshakeFetcher("s3cret", HASH, resolver=Resolver(look_up, 8), try_s=5.0, tls=tls)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_all_ranks_are_asked(authority: Authority, host: str) -> None:
    async with Server(3).served(tls_of(authority, "p1.internal")) as server:
        found = await fetcher(tls_of(authority, "d1.internal")).fetch(target(server.port, host, num_ranks=3))
        assert found == server.ranks


async def test_one_name_for_all_is_looked_for(authority: Authority) -> None:
    async with Server(1).served(tls_of(authority, "p1.internal")) as server:
        assert await fetcher(tls_of(authority, "d1.internal", "p1.internal")).fetch(target(server.port))
        with pytest.raises(HandshakeError, match=r"its certificate is not accepted: .*d1\.internal"):
            await fetcher(tls_of(authority, "d1.internal", "d1.internal")).fetch(target(server.port))


async def test_whoever_another_ca_has_certified_is_refused(authority: Authority, other_authority: Authority) -> None:
    async with Server(1).served(tls_of(other_authority, "p1.internal")) as server:
        with pytest.raises(HandshakeError, match="its certificate is not accepted"):
            await fetcher(tls_of(authority, "d1.internal")).fetch(target(server.port))
        assert server.hosts == []


async def test_without_tls_there_is_no_handshake(authority: Authority) -> None:
    heard = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(1 << 16))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(HandshakeError, match="no TLS: wrong version number"):
            await fetcher(tls_of(authority, "d1.internal")).fetch(target(port))
        assert heard and b"s3cret" not in heard


async def test_a_p_with_tls_hears_nobody_without(authority: Authority) -> None:
    async with Server(1).served(tls_of(authority, "p1.internal")) as server:
        with pytest.raises(HandshakeError):
            await fetcher(None).fetch(target(server.port))
        assert server.hosts == []
