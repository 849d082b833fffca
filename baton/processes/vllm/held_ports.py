"""Ports for servers that choose none themselves, held so that no other program gets them."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from baton_serve.core.net.sockets import port_of

#: How often the system is asked for a port that is followed by enough free ones.
MAX_ATTEMPTS = 64
_LAST_PORT = 65535


class HeldPorts:
    """Holds ports of one host until it is closed. Servers can listen on them meanwhile, and again after a restart.

    The sockets never listen. Linux lets a server that sets SO_REUSEADDR, as uvicorn and ZeroMQ do, bind such a port
    too, and gives the port to nobody who asks for any free one.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def take(self, number: int = 1) -> int:
        """The first of ``number`` ports in a row. Raises OSError when there are none."""
        for _ in range(MAX_ATTEMPTS):
            held: list[socket.socket] = []
            try:
                held.append(self._bind(0))
                first = port_of(held[0])
                # One by one, not as a list: those before one that fails are in ``held``, and are closed.
                held.extend(self._bind(port) for port in range(first + 1, min(first + number, _LAST_PORT + 1)))
            except OSError:
                _close(held)
                continue
            if len(held) == number:
                self._sockets += held
                return first
            _close(held)
        raise OSError(f"no {number} free ports in a row on {self._host}")

    def close(self) -> None:
        """Hold them no more."""
        _close(self._sockets)
        self._sockets = []

    def _bind(self, port: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.bind((self._host, port))  # shared with nobody up to here: this fails if somebody has the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError:
            sock.close()
            raise
        return sock


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
