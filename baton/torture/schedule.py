"""In which order things are done to which kind of process. Pure: drawn from a seed, and from who can be hurt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.cluster.cluster import REDIS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

#: How often each thing happens, of 100. ``rank``: a rank of a worker is killed. ``empty``: Redis forgets everything.
CARDS = {
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
#: Cards from which the next one is taken that can be played: with all of them, what is always possible comes too often.
HAND = 12


class Deck:
    """``CARDS``, shuffled, and again when all have been played; without those of kinds that can never be hurt, which
    would fill the hand some day.
    """

    def __init__(self, rng: random.Random, kinds: Collection[str]) -> None:
        self._rng = rng
        self._kinds = kinds
        self._left: list[tuple[str, str]] = []

    def play(self, can_be_hurt: Callable[[str], bool]) -> tuple[str, str] | None:
        """What to do to which kind; None when nothing in the hand can be done now."""
        if not self._left:
            self._left = [card for card, count in CARDS.items() for _ in range(count) if card[1] in self._kinds]
            self._rng.shuffle(self._left)
        for place, (_, kind) in enumerate(self._left[:HAND]):
            if can_be_hurt(kind):
                return self._left.pop(place)
        return None
