"""The workers that one request may be sent now, of a route that has many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

from baton_serve.router.placement.available import Ahead
from baton_serve.router.pool import Ranking, Worker


class Offer:
    """Asked for by policies, the least loaded worker first. A worker is looked at only when its turn comes.

    Of workers with equal loads the one that was picked longest ago is first, as with ``least_loaded``.
    """

    __slots__ = ("_ahead", "_excluded", "_fits", "_ranking")

    def __init__(self, ranking: Ranking, excluded: Set[Worker], ahead: Ahead, fits: Callable[[Worker], bool]) -> None:
        self._ranking = ranking
        self._excluded = excluded
        self._ahead = ahead.workers
        self._fits = fits

    def __iter__(self) -> Iterator[Worker]:
        return filter(self._takes, self._ranking.with_room())

    def known_by(self, keys: Iterable[str]) -> Iterator[Worker]:
        """The workers on offer whose ``Worker.key`` is in ``keys``."""
        return filter(self._takes, self._ranking.known_by(keys))

    def _takes(self, worker: Worker) -> bool:
        return worker not in self._excluded and worker not in self._ahead and self._fits(worker)
