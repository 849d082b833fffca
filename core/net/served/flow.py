"""Backpressure of one connection. What waits is made only when something does."""

from __future__ import annotations

import asyncio
from asyncio import Transport
from typing import Final

#: Bytes of a body that the application has not taken, above which the port reads no more.
MAX_UNREAD_BYTES: Final = 65536


class Flow:
    """Whether a connection's reading and writing are paused. Most clients read as fast as they are written to."""

    __slots__ = ("_goes_on", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        #: Set when writing goes on; None: no task waits for that.
        self._goes_on: asyncio.Event | None = None

    async def drain(self) -> None:
        """Wait until writing is not paused."""
        if self.write_paused:
            if self._goes_on is None:
                self._goes_on = asyncio.Event()
            await self._goes_on.wait()

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The write buffer is full."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """The write buffer has room."""
        self.write_paused = False
        goes_on, self._goes_on = self._goes_on, None
        if goes_on is not None:
            goes_on.set()
