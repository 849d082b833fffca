"""What the rank says to the scheduler, from whichever thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from workers.rank_protocol.frames import encode

if TYPE_CHECKING:
    import socket

    from core.protocol.steps import FromRank


class Outbox:
    """Whole frames on the rank's socket. Once the scheduler is gone, messages are dropped: nobody is left to care."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, message: FromRank) -> None:
        """Send a message; blocks while the scheduler does not read."""
        frame = encode(message)
        try:
            with self._lock:
                self._sock.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            return
