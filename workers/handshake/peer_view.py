"""The state of remote engines as metrics, ``/internal/state`` and load reports show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.rank_protocol.errors import shortened

#: Bounds for a load report, which is sent several times a second: most engines with an error, and characters per error.
MAX_TOLD_ERRORS = 8
MAX_TOLD_CHARS = 200


class PeerEngineState(StrEnum):
    """The state of a remote engine in the pool."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    #: The last handshake failed, or the engine was lost. The next request after the backoff connects again.
    FAILED = "failed"


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    """One remote engine.

    ``reason`` and ``error`` are those of the last failure, which was ``failure_age_s`` ago (None: there was none); the
    engine may have been connected since. ``reads`` are in flight; ``stuck`` of them were given up, and while there are
    any, new requests are refused.
    """

    state: PeerEngineState
    reason: str = ""
    error: str = ""
    failure_age_s: float | None = None
    reads: int = 0
    stuck: int = 0

    @property
    def refuses(self) -> bool:
        """Whether the next request may fail at once."""
        return self.state is PeerEngineState.FAILED or self.stuck > 0


class HandshakeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers for ``/metrics``. ``states`` has each state. ``failures`` (by reason), ``num_done`` and ``done_seconds``
    only grow.
    """

    states: dict[str, int] = {}
    failures: dict[str, int] = {}
    num_done: int = 0
    done_seconds: float = 0.0
    stuck_reads: int = 0


def with_peers(load: WorkerLoad, views: Mapping[str, PeerView]) -> WorkerLoad:
    """A load report with the number of engines in each state, and with the newest errors, each in a short line.

    Every engine is counted once; one with stuck reads counts as failed.
    """
    failed = {engine_id: view for engine_id, view in views.items() if view.refuses}
    well = [view.state for engine_id, view in views.items() if engine_id not in failed]
    newest = sorted(failed.items(), key=lambda item: item[1].failure_age_s or 0.0)[:MAX_TOLD_ERRORS]
    return msgspec.structs.replace(
        load,
        peers_connecting=well.count(PeerEngineState.CONNECTING),
        peers_connected=well.count(PeerEngineState.CONNECTED),
        peers_failed=len(failed),
        peer_errors={engine_id: _line(view) for engine_id, view in newest},
    )


def _line(view: PeerView) -> str:
    """The error that requests get now: stuck reads have precedence over an earlier failure."""
    return shortened(f"stuck: {view.stuck} reads have not ended" if view.stuck else view.error, MAX_TOLD_CHARS)
