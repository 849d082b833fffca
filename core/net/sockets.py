"""Sockets that ports are served on. When an address is not available they raise OSError with one line for people."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Final

#: Connections that may wait to be accepted: asyncio's 100 drops some when hundreds of clients come at once.
BACKLOG = 4096
#: Where ``tcpi_bytes_acked`` stands in Linux's ``struct tcp_info``.
_ACKED: Final = slice(120, 128)


def bind(host: str, port: int, *, shared: bool = False, backlog: int = 0) -> socket.socket:
    """A bound socket; port 0 lets the system choose. Without a ``backlog`` it does not listen, so that no client waits.

    ``shared``: several sockets may listen on the same port, and the system distributes connections among them.
    """
    with _tcp_socket(host, port) as (sock, address):
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        if backlog:
            sock.listen(backlog)
        return sock


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """As ``bind``, but the socket listens: connections wait in the backlog."""
    return bind(host, port, shared=shared, backlog=BACKLOG)


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket that never listens, which reserves the port for sockets that listen on it ``shared``.

    Raises OSError as ``listen``, and also when a socket already listens there ``shared``.
    """
    with _tcp_socket(host, port) as (sock, address):
        sock.bind(address)
        # Set after bind: before, the port would be shared with sockets of other programs. Later sockets have to share.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return sock


def set_tcp_options(sock: socket.socket, options: Mapping[str, int]) -> None:
    """Turn on keep-alive, and set those TCP options that this system has, given by their names in ``socket``.

    Raises OSError if the socket is closed.
    """
    number = sock.fileno()
    if number < 0:
        raise OSError(errno.EBADF, "the socket is closed")
    # uvloop's stand-in for a socket makes a socket for each call, and asks the system what it is.
    real = socket.socket(sock.family, sock.type, sock.proto, fileno=number)
    try:
        real.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            option = getattr(socket, name, None)
            if option is not None:
                real.setsockopt(socket.IPPROTO_TCP, option, value)
    finally:
        real.detach()


def num_acknowledged(sock: socket.socket) -> int | None:
    """How many bytes of a TCP connection the other system has acknowledged; to have connected is one of them, where one
    has. None: this system does not say. Only Linux does.
    """
    with contextlib.suppress(OSError, AttributeError):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
        if len(info) == _ACKED.stop:
            return int.from_bytes(info[_ACKED], sys.byteorder)
    return None


def port_of(bound: socket.socket) -> int:
    """The port that a socket is bound to."""
    port: int = bound.getsockname()[1]
    return port


def base_url(host: str, port: int, *, tls: bool = False) -> str:
    """A base URL; an IPv6 address gets its brackets."""
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def _tcp_socket(host: str, port: int) -> Iterator[tuple[socket.socket, tuple[object, ...]]]:
    """A socket, and the address to bind it to: an IPv4 address if the name has one. Closed by an error."""
    sock = None
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock, address
    except OSError as error:
        if sock is not None:
            sock.close()
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from None
