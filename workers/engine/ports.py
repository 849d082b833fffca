"""What the engine calls: its ranks, the handshakes with other engines, and hooks of the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.steps import RankFailed, ReadResult, StepResult, ToRank


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """All ranks of a reader have read the lease's blocks from all local ranks."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class ReadFailing:
    """A part of the read has failed, so the read will fail; its other parts may still write the blocks.

    Its ``ReadResult`` follows once all parts have ended. ``error`` is one line for people.
    """

    read_id: int
    error: str


#: What the engine receives from its ranks, with their answers merged into one.
EngineEvent = StepResult | ReadResult | ReadFailing | LeaseRead | RankFailed


class Ranks(Protocol):
    """All ranks as one. The implementation sends each message to all ranks and merges their answers: a step has ended
    when every rank reports its end; a read is done when every rank reports it done, and failed when one reports that.

    Answers go to ``AsyncEngine.on_rank_event`` on the loop; the end of a rank goes to ``AsyncEngine.dead``.
    """

    def send(self, message: ToRank) -> None:
        """Queue the message and return at once. Never raises for a connection that is gone."""

    def give_up_read(self, read_id: int) -> None:
        """Cancel a read that takes too long, and start no other read from that engine until it has ended.

        The read's ``ReadResult`` may still come. Does nothing if the read has ended.
        """

    def silent_ranks(self, step_id: int) -> list[int]:
        """The ranks that have not answered a step that is under way, in order.

        A rank that hangs in the forward pass makes the other ranks wait for it, so they are silent as well.
        """


class Connector(Protocol):
    """Makes remote engines known to the ranks before their blocks are read."""

    async def connect(self, params: KVTransferParams) -> None:
        """Return once every rank can read from ``params.remote_engine_id``. The implementation bounds the time.

        Requests to one engine share one handshake; cancelling one of them must not disturb the others. Any exception
        fails the request as ReadFailedError with the exception's text.
        """

    def is_connected(self, engine_id: str) -> bool:
        """Whether a read from the engine may be sent now: every rank can read from it, and no read from it is stuck.

        Called right before each read, because ``connect`` may have returned long ago. After False the engine calls
        ``connect`` again, which raises the reason or does a new handshake.
        """


@dataclass(frozen=True, kw_only=True)
class EngineHooks:
    """Called on the loop, synchronously; keep them short. They may call the engine.

    ``on_lease_end(lease_id, how)``: the lease holds no blocks here any more; ``how`` as in ``api.Engine.end_lease``.
    Also for a lease that held none before: this engine has taken them over, or a reader is late.
    ``on_pressure()``: sequences wait, none runs, and leases hold the blocks. Called again only after a lease has ended.
    ``on_dead(error)``: the engine cannot continue, and every stream has been ended. The worker should exit.
    ``on_step(result)`` (steps that computed something) and ``on_read(result)`` (reads that have ended on all ranks):
    for histograms.
    """

    on_lease_end: Callable[[str, LeaseState], object] = lambda lease_id, how: None
    on_pressure: Callable[[], None] = lambda: None
    on_dead: Callable[[str], None] = lambda error: None
    on_step: Callable[[StepResult], None] = lambda result: None
    on_read: Callable[[ReadResult], None] = lambda result: None
