"""One worker as this router sees it: its identity, its reports, and what it was sent since."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.core.protocol.worker_address import WorkerAddress
from baton_serve.router.pool.breaker import Breaker
from baton_serve.router.pool.kind import BATON, WorkerKind
from baton_serve.router.pool.model_card import ModelFacts

#: Failures in a row that open a worker's breaker.
BREAKER_FAILURES: Final = 5

#: What stands in the ids of a vLLM server's engines before their numbers.
_RANK: Final = "_dp"


@dataclass(slots=True, eq=False)
class Worker:
    """One worker as this router sees it."""

    worker_id: str
    url: str
    role: Role
    #: The most requests on it at once.
    limit: int
    engine_id: str = ""
    #: None: unknown yet, any model is tried.
    models: tuple[str, ...] | None = None
    #: What it reports about its models, by name.
    facts: dict[str, ModelFacts] = field(default_factory=dict)
    compatibility_hash: str = ""
    #: Of its model, without adapters: see ``weights_of``. Empty: unknown.
    weights_fingerprint: str = ""
    internal_url: str = ""
    kind: WorkerKind = BATON
    #: Version of its engine, for people; empty: unknown.
    version: str = ""
    #: What people may call it by, beside its id; empty: nothing.
    name: str = ""
    #: What is wrong with it, or what this router cannot do for it: one sentence for people; empty: nothing.
    problem: str = ""
    #: The address from which it was added; None: it announces itself. A host name with several addresses is several
    #: workers, whose ids have the addresses instead.
    given: WorkerAddress | None = None
    #: Host and port of vLLM's side channel, from which its compatibility hash comes.
    side_channel: tuple[str, int] | None = None
    #: The port on the same host where it answers handshakes over HTTP instead; 0: nobody has named one.
    handshake_port: int = 0
    #: Sequences that one engine of a vLLM server runs at once: as its address or its announcement says.
    max_num_seqs: int = 0
    #: Engines of a vLLM server, its data-parallel ranks.
    num_engines: int = 1
    #: What a vLLM server announced last of its load; None: it announces nothing.
    announced_load: WorkerLoad | None = None
    #: Whether its engine can hand blocks over, and read them. False: a vLLM without the NixlConnector.
    hands_off: bool = True
    #: Whether a read of its engine's that comes too late is noticed. A vLLM that did not say so has no fence.
    has_fence: bool = False
    #: Hand-offs of its engine's that no D could have read, of this router's requests.
    num_unreadable: int = 0
    #: Whether its side channel answered in a format that this router does not know: another version's of vLLM.
    other_format: bool = False
    #: Ranks of its engine.
    tp: int = 1
    #: Blocks of its KV cache; 0: unknown.
    num_blocks: int = 0
    #: Tokens in a block; 0: unknown.
    block_size: int = 0
    load: WorkerLoad = field(default_factory=WorkerLoad)
    #: Requests that this router sent and that have not finished.
    in_flight: int = 0
    #: Requests that other routers sent it, by ``load``: those that were not in flight from here when it was reported.
    num_of_others: int = field(init=False, default=0)
    #: Blocks that the requests in flight are expected to take, now and when ``load`` was reported.
    held_blocks: int = 0
    held_blocks_at_load: int = 0
    #: When ``load`` was reported, and whether the report is too old to count.
    heard_s: float = 0.0
    load_is_old: bool = False
    #: Requests at once above which its engine has some of them wait, by its last report; None: none waits there. An
    #: engine whose blocks are taken runs fewer than its limit.
    full_at: int | None = None
    #: When it last answered ``liveness``, by the same clock.
    answered_s: float = 0.0
    healthy: bool = True
    #: Whether an operator drained it through a router, and it has not announced yet that it drains.
    left_out: bool = False
    #: Whether it was itself asked to drain: once it announces that it drains, only its announcements count, also if
    #: other routers resume it.
    drain_told: bool = False
    #: Whether it has said that it leaves, and so is not lost when it is gone.
    has_withdrawn: bool = False
    #: Connections that failed since the last one that worked.
    num_failures: int = 0
    #: When a policy that goes by load picked it last, counted in such picks of all policies; 0: never.
    turn: int = 0
    #: What hears of its changes: see ``changed``.
    watchers: tuple[set[Worker], ...] = ()
    #: Tracks whether requests that reach it fail.
    breaker: Breaker = field(default_factory=lambda: Breaker(BREAKER_FAILURES))

    def __post_init__(self) -> None:
        self._count_others(0)

    @property
    def key(self) -> str:
        """Under which is kept what is known of its engine. A new engine has a new key: its cache is empty."""
        return self.engine_id or self.worker_id

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

    @property
    def takes_work(self) -> bool:
        """Whether it can be reached and does not drain. One that is watched has to be known first."""
        if not self.healthy or self.left_out or self.load.draining:
            return False
        return self.models is not None or not self.kind.is_watched

    @property
    def draining(self) -> bool:
        """Whether it is sent nothing new: it announces that it drains, or an operator drained it through a router."""
        return self.left_out or self.load.draining

    def adapter_of(self, model: str) -> str:
        """Fingerprint of the adapter with this name; empty: it is no adapter, or not Baton's."""
        facts = self.facts.get(model)
        return "" if facts is None else facts.adapter

    def weights_of(self, model: str) -> str:
        """Workers that have equal ones for a model compute the same tokens with it. Empty: unknown."""
        return self.weights_with(self.adapter_of(model))

    def weights_with(self, adapter: str) -> str:
        """As ``weights_of`` for a model whose adapter has this fingerprint."""
        return f"{self.weights_fingerprint} {adapter}" if adapter else self.weights_fingerprint

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """The ids of all its engines; empty: not known. The blocks of a hand-off are of one of them.

        ``engine_id`` is that of the first one, and says that it is: vLLM numbers those of one server.
        """
        base = self.engine_id.removesuffix(f"{_RANK}0")
        if base == self.engine_id:
            return (self.engine_id,) if self.engine_id else ()
        return tuple([f"{base}{_RANK}{rank}" for rank in range(max(1, self.num_engines))])

    def layout_of(self, model: str) -> str:
        """Workers of a kind that have equal ones for a model can be read by the same workers."""
        return self.kind.layout(self, model)

    def serves(self, model: str) -> bool:
        """Whether it serves the model, or may do so: Baton's tries any worker that has not reported its models.

        One that is watched and has not is not known yet: what it is, and with which workers it can be paired.
        """
        return not self.kind.is_watched if self.models is None else model in self.models

    def report(self, load: WorkerLoad, now_s: float, num_ours: int | None = None) -> None:
        """Take over a new load report. ``num_ours``: how many of its requests this router may have sent; None: those
        that are in flight now.
        """
        before = self._what_counts() if self.watchers else None
        self.load = load
        if load.draining and self.drain_told:
            self.left_out = self.drain_told = False
        self._count_others(self.in_flight if num_ours is None else num_ours)
        self.held_blocks_at_load = self.held_blocks
        self.heard_s = now_s
        self.load_is_old = False
        if before is not None and self._what_counts() != before:
            self.changed()

    def _what_counts(self) -> tuple[object, ...]:
        """What a report can change of who is picked, without what each request is asked for by itself."""
        return self.num_of_others, self.draining, self.load_is_old, self.load.leased_blocks > 0

    def forget_report(self) -> None:
        """Note that the last report is too old to count: only this router's own requests do."""
        if not self.load_is_old:
            self.load_is_old = True
            self.num_of_others = 0
            self.changed()

    def changed(self) -> None:
        """Note that it may have more or less room now, is more or less loaded, or may be picked no more or again.

        Whatever changes an attribute on which that depends calls this; the rankings that it is in look at it then.
        """
        for watcher in self.watchers:
            watcher.add(self)

    def _count_others(self, num_ours: int) -> None:
        load = self.load
        self.num_of_others = max(0, load.running + load.waiting + load.reading - num_ours)

    def __repr__(self) -> str:
        health = "" if self.healthy else f" unreachable x{self.num_failures}"
        return f"<Worker {self.worker_id} {self.role} {self.occupied}/{self.limit}{health}>"
