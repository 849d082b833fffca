"""Picks the worker with the smallest fraction of its limit in use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from baton_serve.router.placement.offer import Offer
from baton_serve.router.placement.prompt import Prefilled, Prompt
from baton_serve.router.pool import Worker

#: Numbers the picks of all policies, since several may pick among the same workers.
_turns: Final = itertools.count(1)


class LeastLoaded:
    """For prefill and for decode. Of workers with equal fractions the one that was picked longest ago is next."""

    def pick(self, workers: Sequence[Worker], _about: Prompt | Prefilled) -> Worker:
        """See ``Policy``."""
        chosen = workers[0]
        if len(workers) > 1:
            least = math.inf
            for worker in workers:
                usage = worker.usage
                share = (usage.in_flight + usage.num_of_others) / usage.limit  # the property is a call for each
                if share < least or (share == least and usage.turn < chosen.usage.turn):
                    chosen, least = worker, share
        take_turn(chosen)
        return chosen

    def pick_ranked(self, offer: Offer, _about: Prompt | Prefilled) -> Worker | None:
        """See ``PickRanked``."""
        chosen = next(iter(offer), None)
        if chosen is not None:
            take_turn(chosen)
        return chosen


def take_turn(worker: Worker) -> None:
    """Note that the worker is picked."""
    worker.usage.turn = next(_turns)
    for watcher in worker.watchers:
        watcher.add(worker)
