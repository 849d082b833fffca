"""When a worker that can be reached but fails is excluded, and how it is included again. Pure: time is passed in.

    CLOSED ── ``limit`` failures in a row ──> OPEN ── /health answers ──> HALF_OPEN ── a request succeeds ──> CLOSED
                                                ^                              │
                                                └───────── a request fails ────┘

OPEN: no requests while another worker may be picked. HALF_OPEN: one at a time. If no other worker is left, requests are
sent anyway: the breaker never excludes the last worker. A request that succeeds closes it in every state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

#: Failures in a row that open a worker's breaker.
BREAKER_FAILURES: Final = 5
#: Seconds from opening to the first probe; doubled by every failure up to the maximum, reset when it closes.
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S: Final = 30.0


class BreakerState(StrEnum):
    """How far a worker is trusted."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(StrEnum):
    """What happened to the worker."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    #: ``FAILED``, for the ``limit``-th time in a row or later.
    FAILED_OFTEN = "failed_often"
    PROBE_ANSWERED = "probe_answered"


#: An event that a state does not list changes nothing.
TABLE: Final[dict[BreakerState, dict[BreakerEvent, BreakerState]]] = {
    BreakerState.CLOSED: {BreakerEvent.FAILED_OFTEN: BreakerState.OPEN},
    BreakerState.OPEN: {
        BreakerEvent.PROBE_ANSWERED: BreakerState.HALF_OPEN,
        BreakerEvent.SUCCEEDED: BreakerState.CLOSED,
    },
    BreakerState.HALF_OPEN: {
        BreakerEvent.FAILED: BreakerState.OPEN,
        BreakerEvent.FAILED_OFTEN: BreakerState.OPEN,
        BreakerEvent.SUCCEEDED: BreakerState.CLOSED,
    },
}


class Breaker:
    """The breaker of one worker. ``limit``: failures in a row that open it."""

    def __init__(self, limit: int = BREAKER_FAILURES) -> None:
        self._limit = limit
        #: The number of the trial under way; 0: there is none.
        self._trial = 0
        self._num_trials = 0
        self._pause_s = FIRST_PAUSE_S
        self._probe_at_s = 0.0
        self.state = BreakerState.CLOSED
        #: Requests that failed since the last success.
        self.num_failures = 0

    def __repr__(self) -> str:
        return f"<Breaker {self.state} after {self.num_failures}/{self._limit}>"

    @property
    def trusts(self) -> bool:
        """Whether the worker may be sent requests that other workers could take."""
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.HALF_OPEN and not self._trial)

    def failed(self, now_s: float) -> bool:
        """Note a failed request. Returns True if that opened the breaker: probe the worker after ``wait_s``."""
        self.num_failures += 1
        often = self.num_failures >= self._limit
        was = self.state
        if not self._on(BreakerEvent.FAILED_OFTEN if often else BreakerEvent.FAILED):
            return False
        if was is BreakerState.HALF_OPEN:
            self._grow()
        self._probe_at_s = now_s + self._pause_s
        return True

    def succeeded(self) -> bool:
        """Note a successful request. Returns True if that closed the breaker."""
        self.num_failures = 0
        if not self._on(BreakerEvent.SUCCEEDED):
            return False
        self._pause_s = FIRST_PAUSE_S
        return True

    def probe_answered(self) -> bool:
        """Note that ``/health`` answered 200. Returns True if a request may be tried now."""
        return self._on(BreakerEvent.PROBE_ANSWERED)

    def probe_failed(self, now_s: float) -> None:
        """Note that ``/health`` did not answer 200: wait longer before the next probe."""
        self._grow()
        self._probe_at_s = now_s + self._pause_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next probe."""
        return max(0.0, self._probe_at_s - now_s)

    def sent(self) -> int:
        """Note that a request is sent. While the breaker is half open, the first one is the trial. Returns its number,
        for ``left``; 0: it is not the trial.
        """
        if self.state is not BreakerState.HALF_OPEN or self._trial:
            return 0
        self._num_trials += 1
        self._trial = self._num_trials
        return self._trial

    def left(self, trial: int) -> None:
        """Note that a request is over. After the trial, even one without a result (its client left), the next request
        is the trial. A request that was sent before the trial does not end it.
        """
        if trial and trial == self._trial:
            self._trial = 0

    def _on(self, event: BreakerEvent) -> bool:
        following = TABLE[self.state].get(event)
        if following is None:
            return False
        self.state = following
        self._trial = 0
        return True

    def _grow(self) -> None:
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
