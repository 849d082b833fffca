"""This router as one of several: its internal port, registry entry and links, started and stopped in order."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.net.served.body import BodyBudget
from baton_serve.core.net.sockets import base_url, port_of
from baton_serve.core.net.tls import InternalTls
from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.request_ids import new_router_id
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.core.registry.announcer import Announcer
from baton_serve.core.registry.store import Registry
from baton_serve.router.peers.calls import CALL_TIMEOUT_S
from baton_serve.router.peers.links import LinkedPeers
from baton_serve.router.peers.listener import CLOSE_S, PeerFront, PeerListener
from baton_serve.router.pool.discovery import discover
from baton_serve.router.settings import RouterSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

#: Milliseconds between two announcements, and until one expires; so three in a row may be lost.
INTERVAL_MS = 400
TTL_MS = 1500


class Membership:
    """``peers`` can be used at once; other routers see this one from ``start`` to ``stop``. Needs a running loop."""

    def __init__(
        self,
        settings: RouterSettings,
        registry: Registry[RouterRecord],
        public: socket.socket,
        internal: socket.socket,
        tls: InternalTls | None = None,
    ) -> None:
        """``public`` and ``internal`` are the bound sockets of the two ports."""
        token = settings.internal_token
        headers = () if token is None else (("authorization", f"Bearer {token.get_secret_value()}"),)
        self._settings = settings
        self._registry = registry
        self._upstream = HttpClient(CALL_TIMEOUT_S, tls)
        self._internal = internal
        self._tls = None if tls is None else tls.server(internal=True)
        record = _record(settings, public, internal)
        key = None if token is None else hello_key(token.get_secret_value())
        self.peers = LinkedPeers(record, self._upstream, headers, key, tls)
        self._port: PeerListener | None = None
        self._presence: Announcer[RouterRecord] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp, budget: BodyBudget) -> None:
        """Serve ``app`` on the internal port, then announce this router, then watch the registry for other routers."""
        front = PeerFront(self._settings, self.peers.record, app, budget)
        self._port = PeerListener(self._settings, front, self._internal, self._tls)
        await self._port.start()
        record = self.peers.record
        self._presence = Announcer(
            self._registry, record.router_id, lambda: record, interval_ms=INTERVAL_MS, ttl_ms=TTL_MS, who="router"
        )
        await self._presence.start()
        self._watch = asyncio.create_task(discover(self._registry, self.peers), name="routers")

    async def stop(self) -> None:
        """Withdraw the registry entry, and only then close the port, so that other routers need not clean up."""
        if self._presence is not None:
            await self._presence.stop()
        if self._watch is not None:
            await end_task(self._watch)
        if self._port is not None:
            await self._port.stop(CLOSE_S)
        await self.peers.close()
        await self._upstream.close()
        await self._registry.close()


def _record(settings: RouterSettings, public: socket.socket, internal: socket.socket) -> RouterRecord:
    """The record of a router that serves on these bound sockets."""
    internal_host = settings.advertised(settings.bound_internal_host)
    return RouterRecord(
        router_id=new_router_id(),
        url=base_url(settings.advertised(settings.host), port_of(public), tls=settings.speaks_tls),
        internal_url=base_url(internal_host, port_of(internal), tls=settings.speaks_internal_tls),
        group=settings.group,
        started_s=int(time.time()),
    )
