"""Who may be picked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence, Set

    from router.pool import Worker


class Ahead:
    """What requests further ahead in a queue wait for. Nobody behind them is given it, or a large one would starve."""

    __slots__ = ("groups", "workers")

    def __init__(self) -> None:
        self.workers: set[Worker] = set()
        #: Requests of these have nothing left to be asked about.
        self.groups: set[Hashable] = set()


def available(workers: Sequence[Worker], excluded: Set[Worker]) -> list[Worker]:
    """Those that have a sequence free now."""
    return [worker for worker in in_question(workers, excluded) if worker.room > 0]


def in_question(workers: Sequence[Worker], excluded: Set[Worker]) -> list[Worker]:
    """Those that may be picked as soon as they have room.

    Who failed this request before is left out as long as somebody else is reachable, and so is who fails many.
    """
    reachable = [worker for worker in workers if worker.takes_work]
    if excluded:
        reachable = [worker for worker in reachable if worker not in excluded] or reachable
    return [worker for worker in reachable if worker.breaker.trusts] or reachable


def placeable(workers: Sequence[Worker], fits: Callable[[Worker], bool], ahead: Ahead, group: Hashable) -> list[Worker]:
    """Those of ``workers`` with a free sequence that fit, and that nobody ahead waits for.

    If there are none, the request waits for all of them, which is noted in ``ahead``. Not for one where nothing runs:
    it is small, or its blocks are stuck, and nothing that ends by itself will change that.
    """
    found = [worker for worker in workers if worker.room > 0 and worker not in ahead.workers and fits(worker)]
    if not found:
        waits_for = [worker for worker in workers if worker.will_have_room]
        ahead.workers.update(waits_for)
        if len(waits_for) == len(workers):
            ahead.groups.add(group)
    return found
