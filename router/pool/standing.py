"""Whether a worker may be sent requests, as far as this router knows."""

from __future__ import annotations

from typing import Final

from baton_serve.router.pool.breaker import Breaker

#: Failures in a row that open a worker's breaker.
BREAKER_FAILURES: Final = 5


class Standing:
    """What became of calls to one worker, and what operators said of it."""

    __slots__ = (
        "answered_s",
        "breaker",
        "drain_told",
        "has_withdrawn",
        "healthy",
        "left_out",
        "num_failures",
    )

    def __init__(self, breaker: Breaker | None = None) -> None:
        #: Tracks whether requests that reach it fail.
        self.breaker = breaker or Breaker(BREAKER_FAILURES)
        self.healthy = True
        #: Connections that failed since the last one that worked.
        self.num_failures = 0
        #: When it last answered ``liveness``, by the pool's clock.
        self.answered_s = 0.0
        #: Whether an operator drained it through a router, and it has not announced yet that it drains.
        self.left_out = False
        #: Whether the worker itself was told to drain. Once it announces the drain, only its announcements count: then
        #: any router can resume it.
        self.drain_told = False
        #: Whether it has said that it leaves, and so is not lost when it is gone.
        self.has_withdrawn = False
