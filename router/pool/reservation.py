"""A place on a worker."""

from __future__ import annotations

import msgspec

from baton_serve.router.pool.worker import Worker


class Reservation(msgspec.Struct, frozen=True, eq=False):
    """Room reserved on a worker for one request: a sequence and ``num_blocks`` blocks."""

    worker: Worker
    num_blocks: int = 0
    #: What the worker's breaker knows the request by, if the request tries whether the worker works again; 0: it does
    #: not.
    trial: int = 0
