"""One worker as this router sees it: its identity, its reports, and what it was sent since."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.core.protocol.worker_address import WorkerAddress
from baton_serve.router.pool.kind import BATON, WorkerKind
from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.pool.server_facts import VllmServerFacts
from baton_serve.router.pool.standing import Standing
from baton_serve.router.pool.usage import Usage

#: What stands in the ids of a vLLM server's engines before their numbers.
_RANK: Final = "_dp"


@dataclass(slots=True, eq=False, repr=False)
class Worker:
    """One worker as this router sees it."""

    worker_id: str
    url: str
    role: Role
    usage: Usage
    _: KW_ONLY
    kind: WorkerKind = BATON
    engine_id: str = ""
    #: None: unknown yet, any model is tried.
    models: tuple[str, ...] | None = None
    #: What it reports about its models, by name.
    facts: dict[str, ModelFacts] = field(default_factory=dict)
    #: Only workers with equal hashes are paired. Empty: unknown.
    compatibility_hash: str = ""
    #: The fingerprint of its model without adapters: see ``weights_of``. Empty: unknown.
    weights_fingerprint: str = ""
    internal_url: str = ""
    #: Version of its engine, for people; empty: unknown.
    version: str = ""
    #: A name that commands take in place of its id; empty: none.
    name: str = ""
    #: What is wrong with it, or what this router cannot do for it: one sentence for people; empty: nothing.
    problem: str = ""
    #: The address from which it was added; None: it announces itself. A host name with several addresses is several
    #: workers, whose ids have the addresses instead.
    given: WorkerAddress | None = None
    #: Whether its engine notices that its own read came too late. A vLLM that did not say so has no fence.
    has_fence: bool = False
    #: Ranks of its engine.
    tp: int = 1
    standing: Standing = field(default_factory=Standing)
    server: VllmServerFacts = field(default_factory=VllmServerFacts)
    #: The sets in which rankings collect changed workers: see ``changed``.
    watchers: tuple[set[Worker], ...] = ()

    @property
    def key(self) -> str:
        """The key for what is known of its engine. A new engine has a new key, because its cache is empty."""
        return self.engine_id or self.worker_id

    @property
    def is_reachable(self) -> bool:
        """Whether it can be reached. A watched worker must also have told which models it serves."""
        return self.standing.healthy and (self.models is not None or not self.kind.is_watched)

    @property
    def takes_work(self) -> bool:
        """Whether it can be reached and does not drain."""
        return self.is_reachable and not self.draining

    @property
    def draining(self) -> bool:
        """Whether it is sent nothing new: it announces that it drains, or an operator drained it through a router."""
        return self.standing.left_out or self.usage.load.draining

    def adapter_of(self, model: str) -> str:
        """Fingerprint of the adapter with this name; empty: it is no adapter, or not Baton's."""
        facts = self.facts.get(model)
        return "" if facts is None else facts.adapter

    def weights_of(self, model: str) -> str:
        """Its weights for a model: workers with equal weights compute the same tokens. Empty: unknown."""
        return self.weights_with(self.adapter_of(model))

    def weights_with(self, adapter: str) -> str:
        """As ``weights_of`` for a model whose adapter has this fingerprint."""
        return f"{self.weights_fingerprint} {adapter}" if adapter else self.weights_fingerprint

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """The ids of all its engines; empty: not known. A hand-off has the blocks of one engine.

        A vLLM server numbers its engines: if ``engine_id`` ends with ``_dp0``, the others end with ``_dp1`` and so on.
        """
        base = self.engine_id.removesuffix(f"{_RANK}0")
        if base == self.engine_id:
            return (self.engine_id,) if self.engine_id else ()
        return tuple([f"{base}{_RANK}{rank}" for rank in range(max(1, self.server.num_engines))])

    def layout_of(self, model: str) -> str:
        """Its layout for a model: workers of one kind with equal layouts can be read by the same workers."""
        return self.kind.layout(self, model)

    def serves(self, model: str) -> bool:
        """Whether it serves the model, or may do so. A worker that has not told its models is tried for any model.

        A watched worker (``WorkerKind.is_watched``) is not: until it has told its models, the router cannot pair it.
        """
        return not self.kind.is_watched if self.models is None else model in self.models

    def report(self, load: WorkerLoad, now_s: float, num_ours: int | None = None) -> None:
        """Take over a new load report; see ``Usage``."""
        before = self._ranking_inputs() if self.watchers else None
        self.usage.report(load, now_s, num_ours)
        if load.draining and self.standing.drain_told:
            self.standing.left_out = self.standing.drain_told = False
        if before is not None and self._ranking_inputs() != before:
            self.changed()

    def _ranking_inputs(self) -> Hashable:
        return self.standing.left_out, self.usage.ranking_inputs()

    def forget_report(self) -> None:
        """Note that the last report is too old to count: only this router's own requests do."""
        if not self.usage.load_is_old:
            self.usage.forget_report()
            self.changed()

    def changed(self) -> None:
        """Tell the rankings that the worker's room or load has changed, or whether the worker may be picked.

        Code that changes such an attribute must call this. A ranking looks at the worker at its next ``refresh``.
        """
        for watcher in self.watchers:
            watcher.add(self)

    def __repr__(self) -> str:
        standing = self.standing
        health = "" if standing.healthy else f" unreachable x{standing.num_failures}"
        return f"<Worker {self.worker_id} {self.role} {self.usage.occupied}/{self.usage.limit}{health}>"
