"""What ``/metrics`` says of handshakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.engine.counters import Counters, EngineStats
from workers.engine.ledger import PoolStats
from workers.server.metrics import WorkerMetrics
from workers.transfer.handshake_pool import PeerState

if TYPE_CHECKING:
    from collections.abc import Mapping

from protocol.worker import WorkerLoad


def page(handshakes: Mapping[str, PeerState]) -> list[str]:
    stats = EngineStats(Counters(), PoolStats(total=1, free=1, cached=0, pinned=0, leased=0, leases=0), WorkerLoad())
    return WorkerMetrics(lambda: stats, dict, lambda: handshakes).render().decode().splitlines()


def test_handshakes_are_counted_by_state() -> None:
    lines = page({"a": PeerState.CONNECTED, "b": PeerState.FAILED, "c": PeerState.CONNECTED})
    assert [line for line in lines if line.startswith("baton_worker_handshakes{")] == [
        'baton_worker_handshakes{state="connecting"} 0.0',
        'baton_worker_handshakes{state="connected"} 2.0',
        'baton_worker_handshakes{state="failed"} 1.0',
    ]
