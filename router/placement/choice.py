"""Chooses a worker for a request: leaves out workers that must not be picked, and lets a policy pick another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import Any

from baton_serve.router.placement.available import Ahead, in_question, placeable
from baton_serve.router.placement.offer import Offer
from baton_serve.router.placement.ports import AboutT, Policy
from baton_serve.router.pool import Candidates, Ranking, Worker


def choose(
    policy: Policy[AboutT],
    workers: Candidates,
    excluded: Set[Worker],
    fits: Callable[[Worker], bool],
    ahead: Ahead,
    group: Hashable,
    about: AboutT,
) -> Worker | None:
    """The worker that the request is sent to. None: it waits for one, which is noted in ``ahead``, as in ``placeable``.

    ``excluded``: see ``in_question``; ``fits``, ``group``: see ``placeable``; ``about``: what the policy may know.
    """
    if workers.are_many:
        pick_ranked = getattr(policy, "pick_ranked", None)
        ranking = workers.ranking
        ranking.refresh()
        if pick_ranked is not None and ranking.has_usable(excluded):
            return _of_many(pick_ranked, ranking, excluded, fits, ahead, group, about)
    taken = ahead.workers
    found = [
        worker
        for worker in workers
        if worker.usage.room > 0
        and worker.takes_work
        and worker.standing.breaker.trusts
        and worker not in excluded
        and worker not in taken
        and fits(worker)
    ]
    if not found:  # what is left are workers of the last resort, if there are any, and the note in ``ahead``
        found = placeable(in_question(workers, excluded), fits, ahead, group)
    return policy.pick(found, about) if found else None


def _of_many(
    pick_ranked: Callable[[Offer, Any], Worker | None],
    ranking: Ranking,
    excluded: Set[Worker],
    fits: Callable[[Worker], bool],
    ahead: Ahead,
    group: Hashable,
    about: object,
) -> Worker | None:
    chosen = pick_ranked(Offer(ranking, excluded, ahead, fits), about)
    if chosen is None:
        waits_for, are_all = ranking.waits_for(excluded)
        ahead.workers.update(waits_for)
        if are_all:
            ahead.groups.add(group)
    return chosen
