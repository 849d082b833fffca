"""What the steps of a simulated router work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bench.scale.cluster.engines.ports import Asker
from bench.scale.cluster.router.cpu import Cpu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton_serve.router.pool import Worker
    from baton_serve.router.request.failure_table import Failure, Leg
    from bench.scale.clock import SimulatedLoop
    from bench.scale.cluster.engines.decode import DecodeEngine
    from bench.scale.cluster.engines.prefill import PrefillEngine
    from bench.scale.cluster.leases import Leases
    from bench.scale.cluster.outcome import Outcome
    from bench.scale.cluster.request import Request
    from bench.scale.cluster.router.decisions import Decisions
    from bench.scale.costs import Costs


@dataclass(frozen=True)
class Parts:
    """Of one router. ``machines`` are all engines, by their ids; ``leases`` and ``outcome`` are the cluster's."""

    name: str
    loop: SimulatedLoop
    decides: Decisions
    leases: Leases
    machines: Mapping[str, PrefillEngine | DecodeEngine]
    costs: Costs
    outcome: Outcome
    cpu: Cpu = field(default_factory=Cpu)


class Owner(Asker, Protocol):
    """The router whose request it is, as its legs see it."""

    def failed(self, request: Request, leg: Leg, failure: Failure, worker: Worker) -> None:
        """A leg of the request failed on a worker."""

    def lease_lost(self, request: Request, lease_id: str) -> None:
        """P has given up the blocks of a request that waits for a D; the request may be further by now."""
