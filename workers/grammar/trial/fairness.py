"""Shares trials between clients, so that the forms of one client keep no other client's forms waiting.

A client is known by an opaque key from the router; the empty key stands for all requests without one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

from baton_serve.core.protocol.errors import RateLimitError


class Places:
    """A number of places. A client takes one only while more places are free than it has already.

    So one client alone gets half of them, and a second one still finds a quarter. The rule is the dynamic threshold of
    Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches" (1998), with alpha 1.
    """

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Take a place, to be given back. Raises RateLimitError if the client has its share already."""
        if self._taken[client] >= self._num_free:
            raise RateLimitError("Too many new forms of structured output are waiting.", retry_after_s=1.0)
        self._num_free -= 1
        self._taken[client] += 1

    def give_back(self, client: str) -> None:
        self._num_free += 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]


class FairLock:
    """A lock that clients hold in turn: each client once, before one of them holds it again."""

    def __init__(self) -> None:
        self._is_held = False
        #: Clients in the order of their turns, each with those of its requests that wait.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, client: str) -> None:
        if not self._is_held:
            self._is_held = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the lock came in the same moment
                self.release()
            elif (turns := self._waiting.get(client)) is not None and turn in turns:
                turns.remove(turn)
                if not turns:
                    del self._waiting[client]
            raise

    def release(self) -> None:
        """Give the lock to the next request that still waits."""
        while self._waiting:
            client, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[client]
            if not turn.cancelled():
                if turns:
                    self._waiting.move_to_end(client)
                turn.set_result(None)
                return
        self._is_held = False
