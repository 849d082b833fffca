"""All connections of one port: how many there are, their timeouts, and which one is closed to make room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import Generic, Protocol, TypeVar

from baton_serve.core.net.deadlines import Deadlines, Timers
from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.notices import MADE_ROOM, SLOW_HEAD, STUCK, UNREAD, Notices

#: Bytes of all unfinished heads of one port together.
MAX_HEADS_BYTES = 64 << 20
#: Seconds between two looks at a connection. A connection whose client reads nothing in between can be closed to make
#: room.
LOOK_S = 5.0


class Reader(Protocol):
    """The part of a connection that ``Unread`` needs."""

    #: Whether the answer ends by a deadline of its own, whether or not the client reads it.
    has_deadline: bool

    def taken_bytes(self) -> int:
        """A number that changes whenever the client reads something."""


class Client(Reader, Protocol):
    """The part of a connection that ``Connections`` needs."""

    #: Bytes of an unfinished request head.
    head_bytes: int

    def refuse_late_head(self) -> None:
        """Answer 408 if a part of the head has come, and close."""

    def close(self) -> None:
        """Close when everything was sent."""

    def abort(self) -> None:
        """Close at once."""

    def unsent_bytes(self) -> int:
        """The number of bytes that were written and that the client's system has not taken."""


R = TypeVar("R", bound=Reader)


class Unread(Generic[R]):
    """Calls ``give_up`` with each reader that takes nothing for ``timeout_s``, at most two looks later.

    A reader that takes a little each time stays, and so does one whose answer has a deadline of its own.
    """

    def __init__(self, timers: Timers, timeout_s: float, give_up: Callable[[R], None]) -> None:
        self._timers = timers
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._looks = Deadlines[R](timers, min(LOOK_S, timeout_s), self._look)
        #: By reader: the number of taken bytes when it last changed, and the time of that.
        self._taken: dict[R, tuple[int, float]] = {}
        #: Readers that took nothing between the last two looks, in the order in which they stalled.
        self._stalled: dict[R, None] = {}
        #: Add a reader whose write buffer is full. Not a method, because a long answer to a slow client calls it often.
        self.add = self._looks.add

    def discard(self, reader: R) -> None:
        """Note that the write buffer of the reader has room again."""
        self._looks.discard(reader)
        self._taken.pop(reader, None)
        self._stalled.pop(reader, None)

    def oldest(self) -> R | None:
        """The reader that has stalled for longest."""
        return next(iter(self._stalled), None)

    def close(self) -> None:
        """Forget all readers."""
        self._looks.close()
        self._taken.clear()
        self._stalled.clear()

    def _look(self, reader: R) -> None:
        now_s, taken = self._timers.time(), reader.taken_bytes()
        before, since_s = self._taken.get(reader, (None, now_s))
        if taken != before or reader.has_deadline:
            self._taken[reader] = taken, now_s
            self._stalled.pop(reader, None)
        elif now_s - since_s >= self._timeout_s:
            self.discard(reader)
            self._give_up(reader)
            return
        else:
            self._stalled[reader] = None
        self._looks.add(reader)


class Connections:
    """The connections of one port. ``owe``, ``rest`` and ``leave`` start a timeout of one, and ``forget`` stops all its
    timeouts.

    When there are too many connections, one is closed. The kinds are tried in this order, the oldest of a kind first:
    connections being closed, those without a whole request head, those that wait for their next request, and those
    whose client reads nothing of its answer. No other connection with a request is closed.
    """

    def __init__(self, timers: Timers, config: PortConfig, everyone: Sized) -> None:
        """``everyone`` has the open connections."""
        self.config = config
        self.notices = Notices(timers, config.name)
        #: Accepted connections that are not yet in ``everyone``, because their TLS handshake takes a while.
        self.opening: set[Client] = set()
        #: Set when one of ``everyone`` or ``opening`` has gone. A waiter clears it first.
        self.left = asyncio.Event()
        self._everyone = everyone
        self._heads = Deadlines(timers, config.head.timeout_s, self._on_late_head)
        self._idle = Deadlines[Client](timers, config.keep_alive_s, self._end)
        self._leaving = Deadlines(timers, config.linger_s, self._on_left)
        #: ``rest``: the connection waits for its next request. ``wake``: the request begins. Not methods: each request
        #: calls both.
        self.rest, self.wake = self._idle.add, self._idle.discard
        self._unread = Unread[Client](timers, config.unread_s, self._on_unread)
        #: ``block``: the connection's write buffer is full. ``unblock``: the buffer has room again.
        self.block, self.unblock = self._unread.add, self._unread.discard
        self._unsent: dict[Client, int] = {}
        self._heads_bytes = 0

    def __len__(self) -> int:
        return len(self._everyone) + len(self.opening)

    def has_room(self) -> bool:
        """Whether one more connection may come, if need be after closing another one."""
        return len(self) < self.config.max_connections or self.make_room()

    def make_room(self) -> bool:
        """Close one connection; returns False if none may be closed."""
        client = self._leaving.oldest() or self._heads.oldest() or self._idle.oldest() or self._unread.oldest()
        if client is None:
            return False
        self._drop(client)
        return True

    def owe(self, client: Client, num_bytes: int = 0) -> None:
        """Note that the client has sent ``num_bytes`` of its next request head. Heads of all connections together are
        bounded.
        """
        self._heads.add(client)
        self._heads_bytes += num_bytes - client.head_bytes
        client.head_bytes = num_bytes
        while self._heads_bytes > MAX_HEADS_BYTES and (oldest := self._heads.oldest()) is not None:
            self._drop(oldest)

    def settle(self, client: Client) -> None:
        """Note that the client's request head is complete."""
        self._heads.discard(client)
        if client.head_bytes:
            self._heads_bytes -= client.head_bytes
            client.head_bytes = 0

    def leave(self, client: Client) -> None:
        """Note that the connection is being closed, and start the timeout of that."""
        self.forget(client)
        self._leaving.add(client)

    def forget(self, client: Client) -> None:
        """Stop all timeouts of the connection."""
        self.settle(client)
        self._idle.discard(client)
        self._leaving.discard(client)
        self._unread.discard(client)
        self._unsent.pop(client, None)

    async def opened(self) -> None:
        """Wait until ``opening`` is empty."""
        await self._until_empty(self.opening)

    async def gone(self) -> None:
        """Wait until ``everyone`` is empty."""
        await self._until_empty(self._everyone)

    async def _until_empty(self, some: Sized) -> None:
        while len(some):
            self.left.clear()
            await self.left.wait()

    def end(self) -> None:
        """Stop all timeouts of the port."""
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
        """Close it, unless it has read some of its answer since the last time."""
        unsent, before = client.unsent_bytes(), self._unsent.pop(client, None)
        if unsent and (before is None or unsent < before):
            self._leaving.add(client)
            self._unsent[client] = unsent
            return
        if unsent:
            self.notices.note(STUCK)
        client.abort()
