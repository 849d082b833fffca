"""Sockets that ports are served on. When an address is not available they raise OSError with one line for people."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Connections that may wait to be accepted: asyncio's 100 drops some when hundreds of clients come at once.
BACKLOG = 4096
#: Where ``tcpi_bytes_acked`` stands in Linux's ``struct tcp_info``.
_ACKED: Final = slice(120, 128)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket that does not listen yet, so that no client waits; port 0 lets the system choose.

    ``shared``: several sockets may listen on the same port, and the system distributes connections among them.
    """
    with _clear_errors(host, port):
        sock, address = _tcp_socket(host, port)
        try:
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
        return sock


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """As ``bind``, but the socket listens: connections wait in the backlog."""
    sock = bind(host, port, shared=shared)
    with _clear_errors(host, port):
        try:
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return sock


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket that never listens, which reserves the port for sockets that listen on it ``shared``.

    Raises OSError as ``listen``, and also when a socket already listens there ``shared``.
    """
    with _clear_errors(host, port):
        sock, address = _tcp_socket(host, port)
        try:
            sock.bind(address)
            # Set after bind: before, the port would be shared with sockets of other programs. Later sockets have to
            # share.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError:
            sock.close()
            raise
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


def _tcp_socket(host: str, port: int) -> tuple[socket.socket, tuple[object, ...]]:
    """A socket, and the address to bind it to: an IPv4 address if the name has one."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, proto, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, address


@contextlib.contextmanager
def _clear_errors(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from None
