"""Announces this router to the others, by writing its record into the registry at an interval."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from baton_serve.core.net.sockets import base_url, port_of
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.registry.announcer import Announcer

if TYPE_CHECKING:
    import socket

    from baton_serve.core.registry.store import Registry
    from baton_serve.router.settings import RouterSettings

#: Milliseconds between two announcements, and until one expires; so three in a row may be lost.
INTERVAL_MS = 400
TTL_MS = 1500


def record_of(router_id: str, settings: RouterSettings, public: socket.socket, internal: socket.socket) -> RouterRecord:
    """The record of a router that serves on these bound sockets."""
    return RouterRecord(
        router_id=router_id,
        url=base_url(settings.advertised(settings.host), port_of(public), tls=settings.speaks_tls),
        internal_url=base_url(
            settings.advertised(settings.bound_internal_host), port_of(internal), tls=settings.speaks_internal_tls
        ),
        group=settings.group,
        started_s=int(time.time()),
    )


def presence(registry: Registry[RouterRecord], record: RouterRecord) -> Announcer[RouterRecord]:
    """The announcer of this router's record: ``start`` it once the internal port answers; ``stop`` withdraws it."""
    return Announcer(registry, record.router_id, lambda: record, interval_ms=INTERVAL_MS, ttl_ms=TTL_MS, who="router")
