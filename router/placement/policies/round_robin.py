"""Picks each worker in turn, however busy it is."""

from __future__ import annotations

from collections.abc import Sequence

from baton_serve.router.placement.prompt import Prefilled, Prompt
from baton_serve.router.pool import Worker


class RoundRobin:
    """For prefill and for decode: picks the worker with the next id.

    The last pick is kept as an id, not as an index, so a worker that is full for a moment, or leaves, shifts no turn.
    """

    def __init__(self) -> None:
        self._last = ""

    def pick(self, workers: Sequence[Worker], _about: Prompt | Prefilled) -> Worker:
        """See ``Policy``."""
        after = [worker for worker in workers if worker.worker_id > self._last]
        chosen = min(after or workers, key=lambda worker: worker.worker_id)
        self._last = chosen.worker_id
        return chosen
