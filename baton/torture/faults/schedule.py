"""In which order things are done to which kind of process. Pure: drawn from a seed, and from what can be hurt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.cluster.cluster import REDIS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

#: How often each thing is done to each kind, of 100 times. ``rank``: one rank of a worker is killed. ``empty``: Redis
#: forgets everything.
FREQUENCIES = {
    ("kill", "decode"): 30,
    ("kill", "prefill"): 12,
    ("kill", "router"): 22,
    ("kill", REDIS): 8,
    ("rank", "decode"): 6,
    ("rank", "prefill"): 4,
    ("stop", "decode"): 4,
    ("stop", "prefill"): 3,
    ("stop", "router"): 4,
    ("stop", REDIS): 3,
    ("empty", REDIS): 4,
}
#: The next thing is the first of so many that can be done now. If all that are left were looked at, those that can
#: always be done would come too early, and the end of the schedule would have none of them.
LOOKAHEAD = 12


class Schedule:
    """``FREQUENCIES`` in shuffled order, shuffled again whenever all is done.

    Kinds that can never be hurt are left out: they would fill the lookahead some day.
    """

    def __init__(self, rng: random.Random, kinds: Collection[str]) -> None:
        self._rng = rng
        self._kinds = kinds
        self._left: list[tuple[str, str]] = []

    def next(self, can_be_hurt: Callable[[str], bool]) -> tuple[str, str] | None:
        """What to do to which kind; None when none of the next things can be done now."""
        if not self._left:
            self._left = [item for item, count in FREQUENCIES.items() for _ in range(count) if item[1] in self._kinds]
            self._rng.shuffle(self._left)
        for place, (_, kind) in enumerate(self._left[:LOOKAHEAD]):
            if can_be_hurt(kind):
                return self._left.pop(place)
        return None
