"""How busy a worker is: as it reported, and corrected by what this router has done since. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from baton_serve.core.protocol.worker import WorkerLoad


@dataclass(slots=True, eq=False)
class Usage:
    """The places and the blocks of one worker, and how many of them are taken."""

    #: The most requests on it at once.
    limit: int
    #: Blocks of its KV cache; 0: unknown.
    num_blocks: int = 0
    #: Tokens in a block; 0: unknown.
    block_size: int = 0
    #: What it reported last.
    load: WorkerLoad = field(default_factory=WorkerLoad)
    #: When it did, and whether that is too old to count.
    heard_s: float = 0.0
    load_is_old: bool = False
    #: Requests that this router sent and that have not finished.
    in_flight: int = 0
    #: Requests from other routers, as of ``load``: all that the worker reported, minus this router's own.
    num_of_others: int = 0
    #: Blocks that the requests in flight are expected to take, now and when ``load`` was reported.
    held_blocks: int = 0
    held_blocks_at_load: int = 0
    #: How many requests the engine ran or read at its last report, if others waited inside it; None: none waited.
    #: An engine that lacks blocks runs fewer requests than ``limit``.
    full_at: int | None = None
    #: When a policy that goes by load picked it last, counted in such picks of all policies; 0: never.
    turn: int = 0

    @property
    def occupied(self) -> int:
        """Number of requests on the worker now: as it reported, corrected by what this router did since."""
        return self.in_flight + self.num_of_others

    @property
    def room(self) -> int:
        """Number of requests that it may be sent now; negative if other routers sent it more than its limit."""
        most = self.limit if self.full_at is None or self.load_is_old else min(self.limit, self.full_at)
        return most - self.in_flight - self.num_of_others

    @property
    def share_in_use(self) -> float:
        """The fraction of its limit that is in use."""
        return (self.in_flight + self.num_of_others) / self.limit

    @property
    def spare_blocks(self) -> int | None:
        """Blocks that requests may take: free and cached ones as reported, minus what was sent since. None: not known.

        An old report still counts if nothing ran when it was made: then it is not from a busier time, and whatever
        takes the blocks (hanging reads) does not end with a request.
        """
        load = self.load
        if not self.num_blocks or not (
            load.free_blocks or load.cached_blocks or load.pinned_blocks or load.leased_blocks
        ):
            return None
        if self.load_is_old and (load.running or load.reading):
            return None
        return load.free_blocks + load.cached_blocks + self.held_blocks_at_load - self.held_blocks

    @property
    def will_have_room(self) -> bool:
        """Whether something on it will end by itself: a request or a lease."""
        return self.occupied > 0 or self.load.leased_blocks > 0

    def report(self, load: WorkerLoad, now_s: float, num_ours: int | None = None) -> None:
        """Take over a new load report. ``num_ours``: how many of the worker's requests this router may have sent;
        None: as many as this router has in flight there now.
        """
        self.load = load
        ours = self.in_flight if num_ours is None else num_ours
        self.num_of_others = max(0, load.running + load.waiting + load.reading - ours)
        self.held_blocks_at_load = self.held_blocks
        self.heard_s = now_s
        self.load_is_old = False

    def forget_report(self) -> None:
        """Note that the last report is too old to count: only this router's own requests do."""
        self.load_is_old = True
        self.num_of_others = 0

    def ranking_inputs(self) -> Hashable:
        """The part of a report that can change which workers a ranking offers.

        Free blocks are not part of it: each request checks them itself.
        """
        return self.num_of_others, self.load.draining, self.load_is_old, self.load.leased_blocks > 0
