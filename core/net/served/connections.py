"""All connections of one port: how many there are, what is waited for, and who makes room for others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from core.net.served.deadlines import Deadlines
from core.net.served.notices import MADE_ROOM, SLOW_HEAD, STUCK, UNREAD, Notices
from core.net.served.unread import Unread

if TYPE_CHECKING:
    from collections.abc import Sized

    from core.net.served.config import PortConfig
    from core.net.served.deadlines import Timers

#: Unfinished heads of one port together, bytes.
MAX_HEADS_BYTES = 64 << 20


class Client(Protocol):
    """What a connection is here."""

    #: Of an unfinished head, bytes.
    head_bytes: int
    #: The answer under way ends by a deadline of its own, whether or not the client reads it.
    has_deadline: bool

    def refuse_late_head(self) -> None:
        """Answer that the head did not come in time, if any of it came, and close."""

    def close(self) -> None:
        """Close when everything was sent."""

    def abort(self) -> None:
        """Close at once."""

    def unsent_bytes(self) -> int:
        """Of what was written, how much the client has not taken."""

    def taken_bytes(self) -> int:
        """A number that changes whenever the client takes something."""


class Connections:
    """``owe``, ``rest`` and ``leave`` say what a connection does now; ``forget`` that it does nothing of it any more.

    Who makes room when there are too many, the oldest first: what is being closed, what has not sent a whole head,
    what waits for its next request, what takes nothing of its answer. No other connection that has asked for something
    is closed for others.
    """

    def __init__(self, timers: Timers, config: PortConfig, everyone: Sized) -> None:
        """``everyone``: the connections that there are."""
        self.config = config
        self.notices = Notices(timers, config.name)
        #: Those that were accepted and are not among ``everyone`` yet: TLS takes a while.
        self.opening: set[Client] = set()
        #: Set when one of ``everyone`` is gone, or one of ``opening`` has ended; who waits for that clears it.
        self.left = asyncio.Event()
        self._everyone = everyone
        self._heads = Deadlines(timers, config.head.timeout_s, self._on_late_head)
        self._idle = Deadlines[Client](timers, config.keep_alive_s, self._end)
        self._leaving = Deadlines(timers, config.linger_s, self._on_left)
        #: It has its answer and owes nothing; it says something after that. Straight, since every request does both.
        self.rest, self.wake = self._idle.add, self._idle.discard
        self._unread = Unread[Client](timers, config.unread_s, self._on_unread)
        #: Its answer waits for it to take some; it has.
        self.block, self.unblock = self._unread.add, self._unread.discard
        self._unsent: dict[Client, int] = {}
        self._heads_bytes = 0

    def __len__(self) -> int:
        return len(self._everyone) + len(self.opening)

    def has_room(self) -> bool:
        """For one more, if need be because another one makes room."""
        return len(self) < self.config.max_connections or self.make_room()

    def make_room(self) -> bool:
        """False: nobody can."""
        client = self._leaving.oldest() or self._heads.oldest() or self._idle.oldest() or self._unread.oldest()
        if client is None:
            return False
        self._drop(client)
        return True

    def owe(self, client: Client, num_bytes: int = 0) -> None:
        """It has sent so many bytes of its next head; those of all clients together are bounded."""
        self._heads.add(client)
        self._heads_bytes += num_bytes - client.head_bytes
        client.head_bytes = num_bytes
        while self._heads_bytes > MAX_HEADS_BYTES and (oldest := self._heads.oldest()) is not None:
            self._drop(oldest)

    def settle(self, client: Client) -> None:
        """Its head is complete."""
        self._heads.discard(client)
        if client.head_bytes:
            self._heads_bytes -= client.head_bytes
            client.head_bytes = 0

    def leave(self, client: Client) -> None:
        """It is being closed; that may not take for ever."""
        self.forget(client)
        self._leaving.add(client)

    def forget(self, client: Client) -> None:
        """Nothing is waited for."""
        self.settle(client)
        self._idle.discard(client)
        self._leaving.discard(client)
        self._unread.discard(client)
        self._unsent.pop(client, None)

    async def opened(self) -> None:
        """Wait until nobody is among ``opening``."""
        await self._until_empty(self.opening)

    async def gone(self) -> None:
        """Wait until there is none of ``everyone``."""
        await self._until_empty(self._everyone)

    async def _until_empty(self, some: Sized) -> None:
        while len(some):
            self.left.clear()
            await self.left.wait()

    def end(self) -> None:
        """The port is closed."""
        for deadlines in (self._heads, self._idle, self._leaving):
            deadlines.close()
        self._unread.close()
        self.notices.close()

    def _drop(self, client: Client) -> None:
        self.forget(client)
        self.notices.note(MADE_ROOM)
        client.abort()

    def _on_late_head(self, client: Client) -> None:
        self.settle(client)
        self.notices.note(SLOW_HEAD)
        client.refuse_late_head()

    def _end(self, client: Client) -> None:
        client.close()

    def _on_unread(self, client: Client) -> None:
        self.notices.note(UNREAD)
        client.abort()

    def _on_left(self, client: Client) -> None:
        """Give up, unless it has taken some of its answer since it was last looked at."""
        unsent, before = client.unsent_bytes(), self._unsent.pop(client, None)
        if unsent and (before is None or unsent < before):
            self._leaving.add(client)
            self._unsent[client] = unsent
            return
        if unsent:
            self.notices.note(STUCK)
        client.abort()
