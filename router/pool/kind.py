"""What kind of engine a worker is, and all that the router has to know of it outside of ``engines`` and ``vllm``."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.pool.server_facts import VllmServerFacts
from baton_serve.router.pool.usage import Usage


class EngineKind(StrEnum):
    """The name of a kind of engine."""

    BATON = "baton"
    VLLM = "vllm"
    #: An engine of which the router knows only that it speaks OpenAI's API.
    PLAIN = "plain"


class Difference(NamedTuple):
    """``what``: why one of two workers cannot read the other's blocks. ``change``: what to do about it."""

    what: str
    change: str


class Described(Protocol):
    """The facts about a worker that decide which workers' blocks it can read; see ``Worker``."""

    worker_id: str
    kind: WorkerKind
    engine_id: str
    version: str
    facts: dict[str, ModelFacts]
    compatibility_hash: str
    has_fence: bool
    usage: Usage
    server: VllmServerFacts

    def adapter_of(self, model: str) -> str:
        """See ``Worker``."""


@dataclass(frozen=True, eq=False)
class WorkerKind:
    """The answers for one kind. Every worker of the kind has the same object, which never changes."""

    name: EngineKind
    #: How blocks are handed over: only workers that do it in one way can be a pair.
    hand_off: str
    #: Whether such a worker may be Baton's, and so may be told the internal token, if it is known to be.
    may_be_ours: bool = False
    #: Whether a task of its own asks such a worker what it serves and whether it lives; before the first answer the
    #: worker is sent nothing.
    is_watched: bool = False
    #: Whether such a worker checks bodies itself, and takes more of them than this router knows.
    judges_bodies: bool = False
    #: Whether such a worker, told that it computes one choice of several, gives it its number.
    names_choices: bool = False
    #: Whether such a worker says how many of its blocks are leased.
    reports_leases: bool = False
    #: Whether a comment in such a worker's stream shows that it computes, and does more than keep the connection alive.
    comments_tell: bool = True
    #: Whether equal fingerprints say that two workers compute the same tokens.
    has_weights: bool = False
    #: Whether several requests may read the blocks of one prefill.
    shares_blocks: bool = False

    def __repr__(self) -> str:
        return f"<WorkerKind {self.name}>"

    def layout(self, worker: Described, model: str) -> str:
        """Workers of the kind with equal layouts for a model can be read by the same workers."""
        adapter = worker.adapter_of(model)
        return f"{worker.compatibility_hash} {adapter}" if adapter else worker.compatibility_hash

    def same_readers(self, worker: Described, model: str) -> Hashable:
        """Workers of the kind for which this is equal are read by the same workers as long as a route lasts."""
        return self.layout(worker, model)

    def difference(self, source: Described, reader: Described, model: str) -> Difference | None:
        """In what two workers of the kind differ, so that ``reader`` cannot read ``source``'s blocks. None: it can.

        Baton's workers have a hash of everything that matters, and one of each adapter.
        """
        if source.compatibility_hash != reader.compatibility_hash:
            return Difference("models, dtypes or block sizes", "start both alike")
        if source.adapter_of(model) != reader.adapter_of(model):
            return Difference(
                "what is behind the name of the model: another adapter", "start both with the same --lora"
            )
        return None


#: Baton's own workers, from the registry.
BATON = WorkerKind(
    EngineKind.BATON,
    "baton",
    may_be_ours=True,
    names_choices=True,
    reports_leases=True,
    has_weights=True,
    shares_blocks=True,
)
#: Added by URL. It may be one of Baton's workers.
PLAIN = WorkerKind(EngineKind.PLAIN, "baton", may_be_ours=True, reports_leases=True)


def difference(source: Described, reader: Described, model: str) -> Difference | None:
    """In what the two differ, so that ``reader`` cannot read ``source``'s blocks for a model. None: it can."""
    if source.kind.hand_off != reader.kind.hand_off:
        return Difference("engine: one is vLLM's, the other is not", "pair workers of one kind")
    return source.kind.difference(source, reader, model)
