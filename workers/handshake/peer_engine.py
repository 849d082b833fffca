"""One remote engine in the pool: state, last failure, backoff. No I/O; time is passed in."""

from __future__ import annotations

import asyncio

from baton_serve.workers.handshake.peer_view import PeerEngineState
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason

#: Seconds after a failure in which requests for the same engine fail at once; doubles with each failure in a row.
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0


class PeerEngine:
    """``CONNECTING`` while ``task`` runs, then ``CONNECTED`` or ``FAILED``."""

    def __init__(self) -> None:
        self.state = PeerEngineState.CONNECTING
        #: The running attempt.
        self.task: asyncio.Task[None] | None = None
        self.last_error: HandshakeError | None = None
        self.failed_at = 0.0
        self._backoff_s = 0.0
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
        self._backoff_s = 0.0

    def failed(self, error: HandshakeError, now: float) -> None:
        """Note that the attempt has failed, and start the backoff."""
        self.state, self.task = PeerEngineState.FAILED, None
        self.last_error, self.failed_at = error, now
        self._backoff_s = min(MAX_BACKOFF_S, 2 * self._backoff_s or MIN_BACKOFF_S)
        self._retry_at = now + self._backoff_s

    def lost(self, why: str, now: float) -> None:
        """Note that a connected engine was lost. The next request connects again without backoff."""
        self.state = PeerEngineState.FAILED
        self.last_error = HandshakeError(HandshakeReason.LOST, why)
        self.failed_at = self._retry_at = now
