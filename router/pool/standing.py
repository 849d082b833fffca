"""Whether a worker may be sent requests, as far as this router knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_serve.router.pool.breaker import Breaker


@dataclass(slots=True, eq=False)
class Standing:
    """What became of calls to one worker, and what operators said of it."""

    #: Tracks whether requests that reach it fail.
    breaker: Breaker = field(default_factory=Breaker)
    healthy: bool = True
    #: Connections that failed since the last one that worked.
    num_failures: int = 0
    #: When it last answered ``liveness``, by the pool's clock.
    answered_s: float = 0.0
    #: Whether an operator drained it through a router, and it has not announced yet that it drains.
    left_out: bool = False
    #: Whether the worker itself was told to drain. Once it announces the drain, only its announcements count: then
    #: any router can resume it.
    drain_told: bool = False
    #: Whether it has said that it leaves, and so is not lost when it is gone.
    has_withdrawn: bool = False
