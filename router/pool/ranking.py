"""The workers of a route in the order of their load, kept from choice to choice.

To look at every worker for each request costs more than the rest of the request as soon as there are some hundred. So
what changes a worker marks it (``Worker.changed``), and the next choice puts the marked ones where they belong.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence, Set

from baton_serve.router.pool.worker import Worker

#: The share of its limit that a worker has in use, its last turn, and its position in the route. The smallest is next.
Rank = tuple[float, int, int]


class Ranking:
    """What ``in_question`` and ``LeastLoaded`` find by looking at all ``workers``, without looking at all.

    Every method sees the workers as they were at the last ``refresh``.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._positions = {worker: position for position, worker in enumerate(workers)}
        #: The ranks of the workers that take requests and have room: in order, and by the worker's position.
        self._order: list[Rank] = []
        self._ranks: list[Rank | None] = [None] * len(workers)
        self._keys = [""] * len(workers)
        self._by_key: dict[str, tuple[int, ...]] = {}
        #: The workers that take work and are trusted, and those of them on which nothing will end.
        self._usable: set[Worker] = set()
        self._stuck: set[Worker] = set()
        self._changed: set[Worker] = set()
        for worker in workers:
            worker.watchers += (self._changed,)
            worker.changed()

    def __repr__(self) -> str:
        return f"<Ranking {len(self._order)} with room, {len(self._usable)} usable of {len(self._workers)}>"

    def end(self) -> None:
        """Hear no more of changes."""
        for worker in self._workers:
            worker.watchers = tuple(one for one in worker.watchers if one is not self._changed)

    def refresh(self) -> None:
        """Take over what has changed since the last time."""
        while self._changed:
            self._place(self._changed.pop())

    def has_usable(self, excluded: Set[Worker]) -> bool:
        """Whether one that is not ``excluded`` takes work and is trusted: ``in_question`` are then just these."""
        if not excluded:
            return bool(self._usable)
        return len(self._usable) > sum(worker in self._usable for worker in excluded)

    def with_room(self) -> Iterator[Worker]:
        """The usable workers that have room, the least loaded first."""
        for _, _, position in self._order:
            yield self._workers[position]

    def known_by(self, keys: Iterable[str]) -> list[Worker]:
        """The workers of ``with_room`` whose ``Worker.key`` is in ``keys``, in the same order."""
        by_key, ranks = self._by_key, self._ranks
        found = [rank for key in keys for position in by_key.get(key, ()) if (rank := ranks[position]) is not None]
        found.sort()
        return [self._workers[position] for _, _, position in found]

    def waits_for(self, excluded: Set[Worker]) -> tuple[Set[Worker], bool]:
        """The usable workers on which something will end, and whether these are all usable ones."""
        if not excluded and not self._stuck:
            return self._usable, True
        asked = self._usable - excluded
        waits_for = asked - self._stuck
        return waits_for, len(waits_for) == len(asked)

    def _place(self, worker: Worker) -> None:
        position = self._positions[worker]
        is_usable = worker.takes_work and worker.standing.breaker.trusts
        rank = (worker.usage.share_in_use, worker.usage.turn, position) if is_usable and worker.usage.room > 0 else None
        old = self._ranks[position]
        if rank != old:
            if old is not None:
                del self._order[bisect_left(self._order, old)]
            if rank is not None:
                insort(self._order, rank)
            self._ranks[position] = rank
        _set(self._usable, worker, is_usable)
        _set(self._stuck, worker, is_usable and not worker.usage.will_have_room)
        if worker.key != self._keys[position]:
            self._rename(position, worker.key)

    def _rename(self, position: int, key: str) -> None:
        old = self._keys[position]
        others = tuple(one for one in self._by_key.pop(old, ()) if one != position)
        if others:
            self._by_key[old] = others
        self._keys[position] = key
        self._by_key[key] = (*self._by_key.get(key, ()), position)


def _set(some: set[Worker], worker: Worker, is_in: bool) -> None:
    if is_in:
        some.add(worker)
    else:
        some.discard(worker)
