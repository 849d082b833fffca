"""The workers that may serve a leg of a request."""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.router.pool.ranking import Ranking
from baton_serve.router.pool.worker import Worker

#: With more workers than this a ranking of them is kept. To look at all of them costs less with two, more from three on
#: if they have room, and more from between four and eight on if they are full (measured).
MANY = 6


class Candidates(tuple["Worker", ...]):
    """Workers, in the order in which the router came to know them; with a ranking of them if they are many."""

    _ranking: Ranking | None = None

    def __init__(self, _workers: Iterable[Worker] = ()) -> None:
        #: Whether there is a ranking.
        self.are_many = len(self) > MANY

    @property
    def ranking(self) -> Ranking:
        """Ask for it only if they are many."""
        if self._ranking is None:
            self._ranking = Ranking(self)
        return self._ranking

    def end(self) -> None:
        """Note that the route is made anew: nothing is kept up to date for it any more."""
        self.are_many = False
        if self._ranking is not None:
            self._ranking.end()
            self._ranking = None
