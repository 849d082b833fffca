"""Picks the worker with the smallest fraction of its limit in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.placement.prompt import Prefilled, Prompt
    from router.pool import Worker


class LeastLoaded:
    """For prefill and for decode. Workers with equal fractions take turns."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, workers: Sequence[Worker], _about: Prompt | Prefilled) -> Worker:
        """See ``PickPrefill`` and ``PickDecode``."""
        if len(workers) == 1:
            return workers[0]
        self._turn += 1
        shift = self._turn % len(workers)
        order = (*workers[shift:], *workers[:shift])
        return min(order, key=share_in_use)


def share_in_use(worker: Worker) -> float:
    """The fraction of the worker's limit that is in use."""
    return worker.occupied / worker.limit
