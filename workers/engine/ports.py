"""What the engine needs from others: a way to its ranks, a way to know other engines, ears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from core.protocol.steps import RankFailed, ReadResult, StepResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from core.protocol.handoff import KVTransferParams
    from core.protocol.steps import ToRank


@dataclass(frozen=True, slots=True)
class PeerRead:
    """A reader, all its ranks, has read what the lease holds on all of ours."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class ReadFailing:
    """A part of the read has failed, so nobody needs to wait for it; other parts may still write its blocks.

    Its ``ReadResult`` comes once all have ended. ``error`` is one line for people.
    """

    read_id: int
    error: str


#: What the ranks, taken as one, tell the engine.
EngineEvent = StepResult | ReadResult | ReadFailing | PeerRead | RankFailed


class RankLink(Protocol):
    """The ranks, as one. With several ranks, whoever implements this sends to all and merges what they answer:
    a step is over when every rank says so, a read is done when every rank says so and has failed when one does.

    Answers are given to ``AsyncEngine.on_rank_event`` on the loop; the end of the connection to ``AsyncEngine.dead``.
    """

    def send(self, message: ToRank) -> None:
        """Queue the message and return at once. Never raises for a connection that is gone."""

    def give_up_read(self, read_id: int) -> None:
        """The read has taken too long: cancel it, and have nothing new read from that engine until it has ended.

        Its ``ReadResult`` still comes, or never does. Nothing happens if it has ended.
        """

    def silent_ranks(self, step_id: int) -> list[int]:
        """The ranks that have not answered a step that is under way, in order.

        One that hangs inside the forward pass keeps those silent that wait for it there.
        """


class Connector(Protocol):
    """Makes remote engines known to the ranks before their blocks are read."""

    def connect(self, params: KVTransferParams) -> Awaitable[None]:
        """Return once every rank can read from ``params.remote_engine_id``. Bounded in time by the implementation.

        Requests to one engine share one handshake; cancelling one of them must not disturb the others. Whatever it
        raises fails the request as ReadFailedError with the exception's text.
        """

    def is_connected(self, engine_id: str) -> bool:
        """A read from the engine may be sent now: every rank can read from it, and no read from it is stuck.

        Asked right before each read, as what ``connect`` found may be long ago. After False the request is connected
        again: ``connect`` then says why not, or meets the engine anew.
        """


@dataclass(frozen=True, kw_only=True)
class EngineHooks:
    """Called on the loop, synchronously; keep them short. They may call the engine.

    ``on_peer_read(lease_id)``: a reader says it has read what the lease held. Whoever keeps the leases calls
    ``end_lease``; without this hook the engine does so itself. If the reader is this engine, the lease holds no blocks
    any more.
    ``on_pressure()``: somebody waits, nothing runs, and leases hold the blocks. Told once until a lease ends.
    ``on_dead(error)``: the engine cannot go on; every caller has been told. The worker should exit.
    ``on_step(result)`` (steps that computed something) and ``on_read(result)`` (reads that have ended, of all ranks):
    for histograms.
    """

    on_peer_read: Callable[[str], None] | None = None
    on_pressure: Callable[[], None] | None = None
    on_dead: Callable[[str], None] | None = None
    on_step: Callable[[StepResult], None] | None = None
    on_read: Callable[[ReadResult], None] | None = None
