"""The bounds of a port, as the settings and the file descriptors of the process allow."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from baton_serve.core.process.settings import ProcessSettings

#: A connection costs about 100 KB while a request head arrives, and any client can open one.
MOST_CONNECTIONS = 20_000
#: Descriptors that a process asks the system for.
MOST_DESCRIPTORS = 65_536
#: Descriptors for everything except connections of ports: log, Redis, libraries, pipes.
OTHER_DESCRIPTORS = 64


@dataclass(frozen=True)
class HeadLimits:
    """The head of a request, which is its request line and its headers: how large, and how long it may take."""

    #: A larger one is answered 431.
    max_bytes: int = 64 << 10
    max_lines: int = 128
    #: Seconds from the connection, or from the first byte of a later head, to the end of the head.
    timeout_s: float = 15.0


@dataclass(frozen=True)
class PortConfig:
    """The bounds of one port."""

    #: Seconds that a connection may wait for its next request.
    keep_alive_s: float
    head: HeadLimits = field(default_factory=HeadLimits)
    #: The name of the port in the log.
    name: str = "port"
    max_connections: int = MOST_CONNECTIONS
    #: Seconds that a client has to read the last answer before its connection is closed; longer while it reads.
    linger_s: float = 5.0
    #: Seconds after which a client that reads nothing of its answer is closed, unless the answer has a deadline.
    unread_s: float = 60.0
    #: None: plain HTTP.
    tls: ssl.SSLContext | None = None


def public_port(settings: ProcessSettings, keep_alive_s: float, tls: ssl.SSLContext | None = None) -> PortConfig:
    """The bounds of the port for clients."""
    most = settings.max_connections or _shares(_num_descriptors())[0]
    unread_s = settings.unread_timeout_s
    return PortConfig(keep_alive_s, name="public port", max_connections=most, unread_s=unread_s, tls=tls)


def internal_port(settings: ProcessSettings, keep_alive_s: float, tls: ssl.SSLContext | None = None) -> PortConfig:
    """The bounds of the port for routers and workers. Clients of the public port cannot use up its connections."""
    most = _shares(_num_descriptors())[1]
    unread_s = settings.unread_timeout_s
    return PortConfig(keep_alive_s, name="internal port", max_connections=most, unread_s=unread_s, tls=tls)


def raise_descriptor_limit() -> None:
    """Raise this process's limit of file descriptors, which shells set to 1024, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _num_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def _shares(num_descriptors: int) -> tuple[int, int]:
    """How many connections the public and the internal port may have. A client's may need another one, to a worker."""
    internal = num_descriptors // 8
    public = (num_descriptors - internal - OTHER_DESCRIPTORS) // 2
    return max(16, min(public, MOST_CONNECTIONS)), max(16, min(internal, MOST_CONNECTIONS))
