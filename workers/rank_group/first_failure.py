"""Which of several ranks' ends is the reason for the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from workers.rank_protocol.errors import RankEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that the end of one rank may take to reach us after another one has noticed it.
REASON_GRACE_S = 1.0


class FirstFailure:
    """Calls ``on_end`` once: with the first end that is not another one's consequence, or a consequence for want of it.

    The rank that lost another may be heard before the one that was lost; so it is held back for ``grace_s``.
    """

    def __init__(
        self, num_ranks: int, on_end: Callable[[int, Exception], None], grace_s: float = REASON_GRACE_S
    ) -> None:
        self._num_ranks = num_ranks
        self._on_end = on_end
        self._grace_s = grace_s
        self._num_held_back = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Nothing is reported any more: ``on_end`` was called, or ``close``.
        self.is_over = False

    def hear(self, rank: int, error: Exception) -> None:
        """A rank has ended; each is told once."""
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
        """Report nothing from now on."""
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _report(self, rank: int, error: Exception) -> None:
        self.close()
        self._on_end(rank, error)
