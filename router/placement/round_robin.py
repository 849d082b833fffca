"""Each in turn, however busy it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.placement.prompt import Prefilled, Prompt
    from router.pool import Worker


class RoundRobin:
    """The next one after the one before, in the order of their ids. For prefill and for decode.

    The turn is an id and not a number: a worker that is full for a moment, or leaves, shifts nobody else's turn.
    """

    def __init__(self) -> None:
        self._last = ""

    def pick(self, workers: Sequence[Worker], _about: Prompt | Prefilled) -> Worker:
        """See ``PickPrefill`` and ``PickDecode``."""
        after = [worker for worker in workers if worker.worker_id > self._last]
        chosen = min(after or workers, key=lambda worker: worker.worker_id)
        self._last = chosen.worker_id
        return chosen
