"""Merges the histories of all routers into one. Pure.

Each router counts steps on its own clock, and reports how long ago its newest step ended. This aligns its steps with
those of this router, to within half a step; the alignment is kept until the clocks have drifted apart. Steps are added
as counts, so quantiles are over all requests, not means of quantiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from baton_serve.router.dashboard.history import STEP_S, History, Step

#: Steps by which an alignment may be wrong before it is corrected; more than the half step of rounding.
MAX_DRIFT = 0.75


class MergedHistory:
    """The steps of other routers, by the number of this router's step at the same time."""

    def __init__(self) -> None:
        self._told: defaultdict[int, dict[str, Step]] = defaultdict(dict)
        self._made: dict[int, Step] = {}
        self._offsets: dict[str, int] = {}

    def take(self, router_id: str, steps: Sequence[Step], number: float, own_number: float) -> None:
        """Note the steps of a router.

        ``number``: steps in that router's life until now (``position``); ``own_number``: in this router's life.
        """
        offset = self._offsets.get(router_id)
        if offset is None or abs(own_number - number - offset) > MAX_DRIFT:
            offset = self._offsets[router_id] = round(own_number - number)
        for back, step in enumerate(reversed(steps)):
            at = int(number) + offset - back
            if self._told[at].get(router_id) != step:
                self._told[at][router_id] = step
                self._made.pop(at, None)

    def together(self, own: History) -> list[Step]:
        """This router's steps, oldest first, each with the other routers' steps at the same time added."""
        begin = own.num_steps - len(own) + 1
        for kept in (self._told, self._made):
            for old in [at for at in kept if at < begin]:
                del kept[old]
        return [self._at(at, step) for at, step in enumerate(own, begin)]

    def _at(self, at: int, own: Step) -> Step:
        others = self._told.get(at)
        if not others:
            return own
        made = self._made.get(at)
        if made is None:
            made = own
            for other in others.values():
                made = made.plus(other)
            self._made[at] = made
        return made


def position(num_steps: int, age_s: float) -> float:
    """Steps in a router's life until now: ``num_steps`` are over, the newest of them since ``age_s`` seconds."""
    return num_steps + min(age_s / STEP_S, 0.999)
