"""Between engine, rank and handshakes: who hears what a rank says, and who must know of the reads it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from protocol.steps import Connected, Read, ReadResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.steps import FromRank, ToRank
    from workers.transfer.handshake_pool import HandshakePool


class Link(Protocol):
    """The rank."""

    def send(self, message: ToRank) -> None:
        """Queue a message; never raises for a connection that is gone."""


class RankTraffic:
    """The engine's ``RankLink``. Engines that are read from are kept by the handshake pool until the read has ended."""

    def __init__(self, link: Link, pool: HandshakePool, rank: int = 0) -> None:
        self._link = link
        self._pool = pool
        self._rank = rank
        self._engine_of: dict[int, str] = {}
        #: The engine's ear, once there is an engine.
        self.on_event: Callable[[FromRank], None] | None = None

    def send(self, message: ToRank) -> None:
        """To the rank."""
        if isinstance(message, Read):
            self._engine_of[message.read_id] = message.engine_id
            self._pool.read_started(message.engine_id)
        self._link.send(message)

    def hear(self, event: FromRank) -> None:
        """From the rank: to whoever it is for."""
        if isinstance(event, Connected):
            self._pool.on_connected(self._rank, event)
            return
        if isinstance(event, ReadResult):
            engine_id = self._engine_of.pop(event.read_id, "")
            self._pool.read_ended(engine_id, failed=event.outcome == "failed")
        if self.on_event is not None:
            self.on_event(event)
