"""The transport of a connection of ``core/net/client`` whose other end is the test. Not a test."""

from __future__ import annotations

import asyncio


class Pipe(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"socket": None})
        self.sent: list[bytes] = []
        self.aborted = False
        self.is_reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
