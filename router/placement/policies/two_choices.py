"""Picks the less loaded of two random workers: nearly as even as ``LeastLoaded``, and routers do not pick alike."""

from __future__ import annotations

import random
from collections.abc import Sequence

from baton_serve.router.placement.prompt import Prefilled, Prompt
from baton_serve.router.pool import Worker


class TwoChoices:
    """For prefill and for decode.

    Several routers that see the same load report would all send to the same least loaded worker until the next report;
    with two random workers each, they choose differently (Mitzenmacher, "The Power of Two Choices in Randomized Load
    Balancing", 2001).
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def pick(self, workers: Sequence[Worker], _about: Prompt | Prefilled) -> Worker:
        """See ``Policy``."""
        if len(workers) == 1:
            return workers[0]
        return min(self._rng.sample(workers, 2), key=lambda worker: worker.usage.share_in_use)
