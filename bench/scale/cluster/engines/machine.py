"""What P and D have in common: an engine that announces itself, dies, and is started again with another id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerRecord, WorkerStatus
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN
from bench.scale.cluster.engines.cache import Cache
from bench.scale.cluster.kept import BLOCK_SIZE
from bench.scale.load.job import MODEL

if TYPE_CHECKING:
    from bench.scale.clock import SimulatedLoop
    from bench.scale.costs import Costs


@dataclass(frozen=True)
class Size:
    """Size of an engine. ``speed``: how fast it is, 1 for what ``Costs`` says."""

    num_blocks: int
    max_num_seqs: int
    speed: float = 1.0


class Machine:
    """A place for one engine after another."""

    role = Role.BOTH

    def __init__(self, name: str, size: Size, loop: SimulatedLoop, costs: Costs) -> None:
        self.name = name
        self.size = size
        self.loop = loop
        self.costs = costs
        self.is_alive = True
        #: How many engines have run here; an event of an earlier one is dropped.
        self.number = 0
        self.start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.engine_id} {'alive' if self.is_alive else 'dead'}>"

    def start(self) -> None:
        """Run a new engine, with nothing in its cache."""
        self.is_alive = True
        self.number += 1
        self.engine_id = f"{self.name}-{self.number}"
        self.cache = Cache(self.size.num_blocks * BLOCK_SIZE * BYTES_PER_TOKEN)
        self.record = WorkerRecord(
            worker_id=self.engine_id,
            engine_id=self.engine_id,
            role=self.role,
            model=MODEL,
            url=f"http://{self.name}",
            internal_url="",
            compatibility_hash="simulated",
            weights_fingerprint="simulated",
            max_model_len=1 << 20,
            block_size=BLOCK_SIZE,
            num_blocks=self.size.num_blocks,
            max_num_seqs=self.size.max_num_seqs,
        )

    def load(self) -> WorkerLoad:
        """What it would report now."""
        raise NotImplementedError

    def status(self) -> WorkerStatus:
        """Its entry in the registry."""
        return WorkerStatus(record=self.record, load=self.load())
