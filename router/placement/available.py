"""Which workers may be picked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Set

from baton_serve.router.pool import Candidates, Worker


class Ahead:
    """The workers that requests ahead in a queue wait for. Later ones do not get these, or large ones would starve."""

    __slots__ = ("groups", "workers")

    def __init__(self) -> None:
        self.workers: set[Worker] = set()
        #: Requests of these groups need not be offered room: a request ahead waits for all of the group's workers.
        self.groups: set[Hashable] = set()


def available(workers: Sequence[Worker], excluded: Set[Worker]) -> list[Worker]:
    """The workers that can take one more request now."""
    return [worker for worker in in_question(workers, excluded) if worker.usage.room > 0]


def with_room(workers: Candidates, excluded: Set[Worker]) -> Iterator[Worker]:
    """The same as ``available``, in any order, and without looking at all of many ``workers``."""
    if workers.are_many:
        ranking = workers.ranking
        ranking.refresh()
        if ranking.has_usable(excluded):
            # Not a generator expression: compiled, it would be a list.
            for worker in ranking.with_room():
                if worker not in excluded:
                    yield worker
            return
    yield from available(workers, excluded)


def in_question(workers: Sequence[Worker], excluded: Set[Worker]) -> list[Worker]:
    """The workers that may be picked as soon as they have room.

    A worker that failed this request, or fails many, is excluded as long as another one can be reached.
    """
    reachable = [worker for worker in workers if worker.takes_work]
    if excluded:
        reachable = [worker for worker in reachable if worker not in excluded] or reachable
    return [worker for worker in reachable if worker.standing.breaker.trusts] or reachable


def placeable(workers: Sequence[Worker], fits: Callable[[Worker], bool], ahead: Ahead, group: Hashable) -> list[Worker]:
    """The ``workers`` that have enough room and that no request ahead waits for.

    If there are none, the request waits for all of ``workers``, which is noted in ``ahead``; except for workers on
    which nothing runs: these are too small, or their blocks are stuck, and waiting would not change that.
    """
    found = [worker for worker in workers if worker.usage.room > 0 and worker not in ahead.workers and fits(worker)]
    if not found:
        waits_for = [worker for worker in workers if worker.usage.will_have_room]
        ahead.workers.update(waits_for)
        if len(waits_for) == len(workers):
            ahead.groups.add(group)
    return found
