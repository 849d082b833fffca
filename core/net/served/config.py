"""How a port treats those who connect to it."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from core.process.settings import ProcessSettings

#: More than that would only let strangers have it: every one costs some 100 KB while a head is under way.
MOST_CONNECTIONS = 20_000
#: Descriptors that a process asks for if the system lets it have as many.
MOST_DESCRIPTORS = 65_536
#: Kept for what is no connection of a port: log, Redis, libraries, pipes.
OTHER_DESCRIPTORS = 64


@dataclass(frozen=True)
class HeadLimits:
    """The head of a request, which is its request line and its headers: how large, and how long it may take."""

    max_bytes: int = 64 << 10
    max_lines: int = 128
    #: Seconds from the connection, or from the first byte of a later head, to the end of the head.
    timeout_s: float = 15.0


@dataclass(frozen=True)
class PortConfig:
    """What a port is made with."""

    #: Seconds that a connection may wait for its next request.
    keep_alive_s: float
    head: HeadLimits = field(default_factory=HeadLimits)
    #: What it is called in the log.
    name: str = "port"
    max_connections: int = MOST_CONNECTIONS
    #: Seconds that a client may take to read an answer after which the connection closes; longer while it reads.
    linger_s: float = 5.0
    #: Seconds that a client may take nothing of an answer that waits for it, and that has no deadline of its own.
    unread_s: float = 60.0
    #: With a certificate; None: plain HTTP.
    tls: ssl.SSLContext | None = None


def public_port(settings: ProcessSettings, keep_alive_s: float, tls: ssl.SSLContext | None = None) -> PortConfig:
    """The port for clients."""
    most = settings.max_connections or _shares(_num_descriptors())[0]
    return PortConfig(
        keep_alive_s, _head_limits(settings), "public port", most, unread_s=settings.unread_timeout_s, tls=tls
    )


def internal_port(settings: ProcessSettings, keep_alive_s: float, tls: ssl.SSLContext | None = None) -> PortConfig:
    """The port for routers and workers, which has connections of its own to give: strangers cannot use them up."""
    most = _shares(_num_descriptors())[1]
    unread_s = settings.unread_timeout_s
    return PortConfig(keep_alive_s, _head_limits(settings), "internal port", most, unread_s=unread_s, tls=tls)


def raise_descriptor_limit() -> None:
    """Have as many file descriptors as the system allows, within reason: shells give 1024, each client may need two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _head_limits(settings: ProcessSettings) -> HeadLimits:
    return HeadLimits(max_bytes=settings.max_head_bytes)


def _num_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def _shares(num_descriptors: int) -> tuple[int, int]:
    """Connections of the public and of the internal port. Each of a client may need another one to a worker."""
    internal = num_descriptors // 8
    public = (num_descriptors - internal - OTHER_DESCRIPTORS) // 2
    return max(16, min(public, MOST_CONNECTIONS)), max(16, min(internal, MOST_CONNECTIONS))
