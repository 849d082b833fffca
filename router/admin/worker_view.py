"""One worker as ``/admin/workers`` shows it."""

from __future__ import annotations

from pydantic import BaseModel, Field

from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool import Worker
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.pool.kind import EngineKind

#: The problem of a worker that announces itself and has not done so of late.
OLD_NUMBERS = "It has announced nothing for some seconds, so its numbers are old. Can it and this router reach Redis?"


class HandshakesView(BaseModel):
    """The state of a worker's connections to the engines it reads from."""

    connecting: int
    connected: int
    failed: int = Field(description="Not met, lost since, or not answering reads.")
    errors: dict[str, str] = Field(description="Why, by engine id; the newest few.")


class WorkerView(BaseModel):
    """One known worker."""

    id: str
    name: str = Field(description="What baton up calls it; it may stand for the id. Empty: it has none.")
    url: str
    role: Role = Field(description="What the worker is for.")
    kind: EngineKind = Field(description="Which engine it is; plain: it speaks OpenAI's API, and no more is known.")
    version: str = Field(description="The engine's version, where it tells one.")
    problem: str = Field(description="What is wrong with it, and what to change; empty: nothing is known to be.")
    side_channel: str = Field(description="Where vLLM's NIXL side channel is asked for its compatibility hash.")
    engine_id: str
    models: list[str] | None = Field(description="null: unknown yet.")
    tp: int = Field(description="Ranks of its engine.")
    compatibility_hash: str = Field(description="Only workers with equal hashes are paired.")
    has_fence: bool = Field(
        description="Whether it notices that it reads blocks too late, if both sides have a fence. A vLLM that has not "
        "loaded Baton's connector has none, nor has one whose side channel does not answer."
    )
    unreadable_hand_offs: int = Field(
        description="Prompts that it prefilled for nothing, because vLLM gave up a block too many of a sliding window: "
        "another server computed the whole of each."
    )
    healthy: bool = Field(description="No connection has failed since one was made, or none was tried yet.")
    draining: bool = Field(description="It is given nothing new.")
    left_out: bool = Field(description="So far only in this router: it has not announced it.")
    takes_work: bool = Field(description="It can be reached and does not drain.")
    num_failures: int = Field(description="Connections that failed since one was made.")
    breaker: BreakerState = Field(
        description="Not closed: requests that reached it failed; left out while others are there."
    )
    breaker_failures: int = Field(description="Requests that failed there in a row.")
    in_flight: int = Field(description="Requests sent by this router and not over.")
    occupied: int = Field(description="Requests on the worker as far as this router knows.")
    limit: int = Field(description="Requests at once that this router allows.")
    running: int
    waiting: int
    reading: int
    free_blocks: int
    cached_blocks: int
    pinned_blocks: int
    leased_blocks: int
    leases: int
    handshakes: HandshakesView


def view_worker(worker: Worker) -> WorkerView:
    """The view of one worker."""
    load = worker.load
    return WorkerView(
        id=worker.worker_id,
        name=worker.name,
        url=worker.url,
        role=worker.role,
        kind=worker.kind.name,
        version=worker.version,
        problem=worker.problem or (OLD_NUMBERS if worker.load_is_old and worker.given is None else ""),
        side_channel="" if worker.side_channel is None else "{}:{}".format(*worker.side_channel),
        engine_id=worker.engine_id,
        models=None if worker.models is None else list(worker.models),
        tp=worker.tp,
        compatibility_hash=worker.compatibility_hash,
        has_fence=worker.has_fence,
        unreadable_hand_offs=worker.num_unreadable,
        healthy=worker.healthy,
        draining=worker.draining,
        left_out=worker.left_out,
        takes_work=worker.takes_work,
        num_failures=worker.num_failures,
        breaker=worker.breaker.state,
        breaker_failures=worker.breaker.num_failures,
        in_flight=worker.in_flight,
        occupied=worker.occupied,
        limit=worker.limit,
        running=load.running,
        waiting=load.waiting,
        reading=load.reading,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        pinned_blocks=load.pinned_blocks,
        leased_blocks=load.leased_blocks,
        leases=load.leases,
        handshakes=HandshakesView(
            connecting=load.peers_connecting,
            connected=load.peers_connected,
            failed=load.peers_failed,
            errors=load.peer_errors,
        ),
    )
