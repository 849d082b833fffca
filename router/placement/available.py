"""Who may be picked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from router.workers import Worker


def available(workers: Sequence[Worker], excluded: Set[Worker]) -> list[Worker]:
    """Those with room now.

    Who failed this request before is left out as long as somebody else is reachable, and so is who fails many.
    """
    reachable = [worker for worker in workers if worker.takes_work]
    if excluded:
        reachable = [worker for worker in reachable if worker not in excluded] or reachable
    trusted = [worker for worker in reachable if worker.breaker.trusts] or reachable
    return [worker for worker in trusted if worker.room > 0]
