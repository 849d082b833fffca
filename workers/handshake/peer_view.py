"""What is told about the handshakes of this engine: to metrics, ``/internal/state``, and routers. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How many engines a load report names, and how much it says of each: it is sent several times a second.
MAX_TOLD_ERRORS = 8
MAX_TOLD_CHARS = 200


class PeerState(StrEnum):
    """A remote engine as the pool sees it."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    #: The last handshake failed, or the engine was lost since. The next request meets it anew, after a backoff.
    FAILED = "failed"


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    """One remote engine.

    ``reason`` and ``error`` are of the last failure, which may be over: ``failure_age_s`` says how long ago it was,
    None that there was none. ``stuck``: so many of ``reads`` were given up and have not ended; requests are refused.
    """

    state: PeerState
    reason: str = ""
    error: str = ""
    failure_age_s: float | None = None
    reads: int = 0
    stuck: int = 0

    @property
    def refuses(self) -> bool:
        """The next request may fail at once."""
        return self.state is PeerState.FAILED or self.stuck > 0


class PeerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of ``core.protocol.worker.WorkerLoad`` that are about remote engines, for ``msgspec.structs.replace``.

    Every engine is in one of the three; one whose reads are stuck counts as failed.
    """

    peers_connecting: int = 0
    peers_connected: int = 0
    peers_failed: int = 0
    peer_errors: dict[str, str] = {}


class HandshakeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers for ``/metrics``. ``failures`` (by reason), ``num_done`` and ``done_seconds`` only grow."""

    states: dict[str, int] = {}
    failures: dict[str, int] = {}
    num_done: int = 0
    done_seconds: float = 0.0
    stuck_reads: int = 0


def summarize(views: Mapping[str, PeerView]) -> PeerSummary:
    """Count, and name the failures that are news: the newest first, few of them, each in a short line."""
    failed = {engine_id: view for engine_id, view in views.items() if view.refuses}
    well = [view.state for engine_id, view in views.items() if engine_id not in failed]
    newest = sorted(failed.items(), key=lambda item: item[1].failure_age_s or 0.0)[:MAX_TOLD_ERRORS]
    return PeerSummary(
        peers_connecting=well.count(PeerState.CONNECTING),
        peers_connected=well.count(PeerState.CONNECTED),
        peers_failed=len(failed),
        peer_errors={engine_id: _line(view) for engine_id, view in newest},
    )


def count_states(views: Mapping[str, PeerView]) -> dict[str, int]:
    """How many engines are in each state, every state included."""
    states = [view.state for view in views.values()]
    return {state.value: states.count(state) for state in PeerState}


def _line(view: PeerView) -> str:
    """What requests hear now: that reads are stuck before what went wrong earlier."""
    line = f"stuck: {view.stuck} reads have not ended" if view.stuck else view.error
    return line if len(line) <= MAX_TOLD_CHARS else line[: MAX_TOLD_CHARS - 3] + "..."
