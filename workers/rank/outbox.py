"""Sends the rank's messages to the main process, from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from baton_serve.workers.rank_protocol.frames import encode

if TYPE_CHECKING:
    import socket

    from baton_serve.core.protocol.steps import FromRank


class Outbox:
    """Writes whole frames to the rank's socket. Messages are dropped once the main process has ended."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, message: FromRank) -> None:
        """Send a message; blocks while the main process does not read."""
        frame = encode(message)
        try:
            with self._lock:
                self._sock.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            return
