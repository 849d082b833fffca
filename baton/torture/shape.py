"""The processes of a run: how many of each kind, and how they are started."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.cluster.cluster import DEMO_WORKER
from baton.cluster.process import ROUTER, Flags, ProcessSpec


@dataclass(frozen=True)
class Shape:
    """How many processes of each kind there are, how many ranks workers have, and flags beyond the usual ones."""

    prefill: int = 2
    decode: int = 3
    routers: int = 2
    prefill_tp: int = 1
    decode_tp: int = 1
    worker_flags: Flags = field(default_factory=dict)
    router_flags: Flags = field(default_factory=dict)

    @property
    def specs(self) -> dict[str, ProcessSpec]:
        """How each process except Redis is started, by name."""
        worker = {**DEMO_WORKER, "dtype": "float32", "num-blocks": 512, **self.worker_flags}
        kinds = (
            (self.prefill, ProcessSpec("prefill", {"tp": self.prefill_tp, **worker})),
            (self.decode, ProcessSpec("decode", {"tp": self.decode_tp, **worker})),
            (self.routers, ProcessSpec(ROUTER, {"port": 0, "log-requests": True, **self.router_flags})),
        )
        return {f"{spec.kind}-{i}": spec for count, spec in kinds for i in range(count)}

    @property
    def tps(self) -> set[int]:
        """The numbers of ranks that workers have."""
        return {self.prefill_tp, self.decode_tp}
