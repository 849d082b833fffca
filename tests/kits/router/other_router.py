"""Another router on its internal port, and links to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.net.served.body import BodyBudget
from baton_serve.core.net.sockets import base_url, listen
from baton_serve.core.net.tls import InternalTls
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.router.peers.links import LinkedPeers
from baton_serve.router.peers.listener import CLOSE_S, PeerFront, PeerListener
from tests.kits.router.cluster import make_settings

TOKEN = "s3cret-internal"
SETTINGS = make_settings(internal_token=TOKEN)
OTHER = "b" * 12
OWN = RouterRecord(router_id="a" * 12, url="http://own", internal_url="http://own")


def app() -> FastAPI:
    made = FastAPI()

    @made.get("/internal/echo")
    async def echo() -> dict[str, str]:
        return {"from": OTHER}

    return made


class OtherRouter:
    """One that answers on its internal port."""

    def __init__(self, port: int = 0, router_id: str = OTHER, tls: InternalTls | None = None) -> None:
        sock = listen("127.0.0.1", port)
        self.port = sock.getsockname()[1]
        url = base_url("127.0.0.1", self.port, tls=tls is not None)
        self.record = RouterRecord(router_id=router_id, url="http://h", internal_url=url)
        front = PeerFront(SETTINGS, self.record, app(), BodyBudget(1 << 20))
        self._port = PeerListener(SETTINGS, front, sock, None if tls is None else tls.server(internal=True))

    async def __aenter__(self) -> OtherRouter:
        await self._port.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._port.stop(CLOSE_S)


@asynccontextmanager
async def linked(token: str = TOKEN, tls: InternalTls | None = None) -> AsyncIterator[LinkedPeers]:
    upstream, headers = HttpClient(2.0, tls), (("authorization", f"Bearer {token}"),)
    peers = LinkedPeers(OWN, upstream, headers, hello_key(token), tls)
    dead: list[str] = []
    peers.on_dead.append(dead.append)
    peers.dead = dead  # type: ignore[attr-defined]
    try:
        yield peers
    finally:
        await peers.close()
        await upstream.close()


def state(peers: LinkedPeers) -> str:
    return " ".join(peer.state for peer in peers.peers())
