"""Finds out, when several ranks end, which end is the cause and which ends are its consequences."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton_serve.workers.rank_protocol.errors import RankEndedError

#: A rank that loses another rank may be reported as ended before that other rank: at most this many seconds earlier.
REASON_GRACE_S = 1.0


class FirstFailure:
    """Calls ``on_end`` once, with the first end that is a cause.

    An end that is a consequence is held back for ``grace_s``, because its cause may come later. If no cause comes,
    or if the ends of all ranks are consequences, ``on_end`` is called with a consequence.
    """

    def __init__(
        self, num_ranks: int, on_end: Callable[[int, Exception], None], grace_s: float = REASON_GRACE_S
    ) -> None:
        self._num_ranks = num_ranks
        self._on_end = on_end
        self._grace_s = grace_s
        self._num_held_back = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Whether ``on_end`` or ``close`` was called; ``on_end`` is not called any more.
        self.is_over = False

    def handle(self, rank: int, error: Exception) -> None:
        """Handle the end of a rank; call this once for each rank."""
        if self.is_over:
            return
        if not (isinstance(error, RankEndedError) and error.in_consequence):
            self._report(rank, error)
            return
        self._num_held_back += 1
        if self._num_held_back == self._num_ranks:
            self._report(rank, error)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._report, rank, error)

    def close(self) -> None:
        """Never call ``on_end`` from now on."""
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _report(self, rank: int, error: Exception) -> None:
        self.close()
        self._on_end(rank, error)
