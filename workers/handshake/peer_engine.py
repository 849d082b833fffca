"""One remote engine in the pool: state, last failure, backoff. No I/O; time is passed in."""

from __future__ import annotations

import asyncio

from baton_serve.workers.handshake.peer_view import PeerEngineState
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason

#: The backoff is doubled at most this many times, so that the number stays finite.
_MAX_DOUBLINGS = 30


class PeerEngine:
    """``CONNECTING`` while ``task`` runs, then ``CONNECTED`` or ``FAILED``."""

    def __init__(self, min_backoff_s: float, max_backoff_s: float) -> None:
        """Requests fail at once for so many seconds after a failure: twice as many after the next one in a row."""
        self._min_backoff_s = min_backoff_s
        self._max_backoff_s = max_backoff_s
        self.state = PeerEngineState.CONNECTING
        #: The running attempt.
        self.task: asyncio.Task[None] | None = None
        self.last_error: HandshakeError | None = None
        self.failed_at = 0.0
        self._num_failures = 0
        self._retry_at = 0.0

    def refusal(self, now: float) -> HandshakeError | None:
        """The error for a request during the backoff; None if another attempt may begin."""
        if self.state is not PeerEngineState.FAILED or self.last_error is None or now >= self._retry_at:
            return None
        return HandshakeError(self.last_error.reason, f"{self.last_error.message} (not tried again yet)")

    def began(self, task: asyncio.Task[None]) -> None:
        self.state, self.task = PeerEngineState.CONNECTING, task

    def connected(self) -> None:
        self.state, self.task = PeerEngineState.CONNECTED, None
        self._num_failures = 0

    def failed(self, error: HandshakeError, now: float) -> None:
        """Note that the attempt has failed, and start the backoff."""
        self.state, self.task = PeerEngineState.FAILED, None
        self._num_failures += 1
        self._note(error, now)
        backoff_s = self._min_backoff_s * 2.0 ** min(self._num_failures - 1, _MAX_DOUBLINGS)
        self._retry_at = now + min(self._max_backoff_s, backoff_s)

    def lost(self, why: str, now: float) -> HandshakeError:
        """Note that a connected engine was lost; returns the error. The next request connects again without backoff."""
        self.state = PeerEngineState.FAILED
        error = HandshakeError(HandshakeReason.LOST, why)
        self._note(error, now)
        self._retry_at = now
        return error

    def _note(self, error: HandshakeError, now: float) -> None:
        self.last_error, self.failed_at = error, now
