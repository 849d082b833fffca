"""The order of faults, and the kind of process that each goes to. Pure: depends on a seed, and on which kinds have a
victim.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from baton_serve.baton.cluster.cluster import REDIS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Mapping

#: How many of 100 faults each of these is. ``rank``: one rank of a worker is killed. ``empty``: Redis forgets
#: everything.
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
#: The next fault is the first possible one among this many. If all remaining faults were considered, those that are
#: always possible would come too early, and the end of the schedule would have none of them.
LOOKAHEAD = 12


class Schedule:
    """The faults of ``frequencies`` in shuffled order, shuffled again whenever all are used up.

    Faults of kinds that never have a victim are excluded: they would never be taken out, and once ``LOOKAHEAD`` of them
    were at the front, no other fault would be found.
    """

    def __init__(
        self,
        rng: random.Random,
        kinds: Collection[str],
        frequencies: Mapping[tuple[str, str], int] = MappingProxyType(FREQUENCIES),
    ) -> None:
        self._rng = rng
        self._frequencies = frequencies
        self._kinds = kinds
        self._left: list[tuple[str, str]] = []

    def next(self, can_be_hurt: Callable[[str], bool]) -> tuple[str, str] | None:
        """The next fault and its kind of process; None when none of the next faults is possible now."""
        if not self._left:
            possible = [(item, count) for item, count in self._frequencies.items() if item[1] in self._kinds]
            self._left = [item for item, count in possible for _ in range(count)]
            self._rng.shuffle(self._left)
        for place, (_, kind) in enumerate(self._left[:LOOKAHEAD]):
            if can_be_hurt(kind):
                return self._left.pop(place)
        return None
