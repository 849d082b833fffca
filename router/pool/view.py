"""One worker as people and programs are shown it: in ``/admin/workers``, on the dashboard, by other routers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.pool.kind import EngineKind
from baton_serve.router.pool.worker import Worker

#: The problem of a worker that announces itself and has not done so of late.
OLD_NUMBERS = "It has announced nothing for some seconds, so its numbers are old. Can it and this router reach Redis?"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakesView:
    """The state of a worker's connections to the engines it reads from."""

    connecting: int
    connected: int
    failed: Annotated[int, Field(description="Not met, lost since, or not answering reads.")]
    errors: Annotated[dict[str, str], Field(description="Why, by engine id; the newest few.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One known worker."""

    id: str
    name: Annotated[str, Field(description="What baton up calls it; it may stand for the id. Empty: it has none.")]
    url: str
    role: Annotated[Role, Field(description="What the worker is for.")]
    kind: Annotated[
        EngineKind, Field(description="Which engine; plain: one that speaks OpenAI's API, and no more is known.")
    ]
    version: Annotated[str, Field(description="The engine's version, where it tells one.")]
    problem: Annotated[str, Field(description="What is wrong with it, and what to change; empty: nothing known.")]
    side_channel: Annotated[str, Field(description="Where vLLM's side channel is asked for its compatibility hash.")]
    engine_id: str
    models: Annotated[list[str] | None, Field(description="null: unknown yet.")]
    tp: Annotated[int, Field(description="Ranks of its engine.")]
    compatibility_hash: Annotated[str, Field(description="Only workers with equal hashes are paired.")]
    weights_fingerprint: Annotated[
        str, Field(description="Only workers with equal ones go on with each other's streams.")
    ] = ""
    has_fence: Annotated[
        bool,
        Field(
            description="Whether it notices that it reads blocks too late, if both sides have a fence. A vLLM that has "
            "not loaded Baton's connector has none, nor has one whose side channel does not answer."
        ),
    ]
    unreadable_hand_offs: Annotated[
        int,
        Field(
            description="Prompts that it prefilled for nothing, because vLLM gave up a block too many of a sliding "
            "window: another server computed the whole of each."
        ),
    ]
    healthy: Annotated[bool, Field(description="No connection has failed since one was made, or none was tried yet.")]
    draining: Annotated[bool, Field(description="It is given nothing new.")]
    left_out: Annotated[bool, Field(description="So far only in this router: it has not announced it.")]
    takes_work: Annotated[bool, Field(description="It can be reached and does not drain.")]
    num_failures: Annotated[int, Field(description="Connections that failed since one was made.")]
    breaker: Annotated[
        BreakerState, Field(description="Not closed: requests that reached it failed; left out while others are there.")
    ]
    breaker_failures: Annotated[int, Field(description="Requests that failed there in a row.")]
    in_flight: Annotated[int, Field(description="Requests sent by this router and not over.")]
    occupied: Annotated[int, Field(description="Requests on the worker as far as this router knows.")]
    limit: Annotated[int, Field(description="Requests at once that this router allows.")]
    running: int
    waiting: int
    reading: int
    block_size: Annotated[int, Field(description="Tokens in a block; 0: unknown.")] = 0
    free_blocks: int
    cached_blocks: int
    pinned_blocks: int
    leased_blocks: int
    leases: int
    handshakes: HandshakesView


def view_worker(worker: Worker) -> WorkerView:
    """The view of one worker."""
    load = worker.usage.load
    return WorkerView(
        id=worker.worker_id,
        name=worker.name,
        url=worker.url,
        role=worker.role,
        kind=worker.kind.name,
        version=worker.version,
        problem=worker.problem or (OLD_NUMBERS if worker.usage.load_is_old and worker.given is None else ""),
        side_channel="" if worker.server.side_channel is None else "{}:{}".format(*worker.server.side_channel),
        engine_id=worker.engine_id,
        models=None if worker.models is None else list(worker.models),
        tp=worker.tp,
        compatibility_hash=worker.compatibility_hash,
        weights_fingerprint=worker.weights_fingerprint,
        has_fence=worker.has_fence,
        unreadable_hand_offs=worker.server.num_unreadable,
        healthy=worker.standing.healthy,
        draining=worker.draining,
        left_out=worker.standing.left_out,
        takes_work=worker.takes_work,
        num_failures=worker.standing.num_failures,
        breaker=worker.standing.breaker.state,
        breaker_failures=worker.standing.breaker.num_failures,
        in_flight=worker.usage.in_flight,
        occupied=worker.usage.occupied,
        limit=worker.usage.limit,
        running=load.running,
        waiting=load.waiting,
        reading=load.reading,
        block_size=worker.usage.block_size,
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
