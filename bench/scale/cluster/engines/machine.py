"""What P and D have in common: an engine that announces itself, dies, and is started again with another id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerStatus
from baton_serve.router.placement.chunks import SIZES
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN
from bench.scale.clock import SimulatedLoop
from bench.scale.costs import Costs
from bench.scale.load.job import MODEL
from bench.worker_record import BLOCK_SIZE, worker_record


@dataclass(frozen=True)
class Size:
    """Size of an engine. ``speed``: how fast it is, 1 for what ``Costs`` says."""

    num_blocks: int
    max_num_seqs: int
    speed: float = 1.0


class Cache:
    """Chunks of prompts; the least recently used are evicted first."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._sizes: OrderedDict[int, int] = OrderedDict()

    def take(self, chunks: Sequence[int]) -> int:
        """Add a prompt; returns how many of its chunks, from the first on, were cached before."""
        found = next((i for i, chunk in enumerate(chunks) if chunk not in self._sizes), len(chunks))
        for chunk, size in reversed(list(zip(chunks, SIZES, strict=False))):  # the end of a prompt is evicted first
            self._room -= 0 if chunk in self._sizes else size
            self._sizes[chunk] = size
            self._sizes.move_to_end(chunk)
        while self._room < 0:
            self._room += self._sizes.popitem(last=False)[1]
        return found


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
        url, sizes = f"http://{self.name}", {"num_blocks": self.size.num_blocks, "max_num_seqs": self.size.max_num_seqs}
        self.record = worker_record(self.role, MODEL, url, **sizes, engine_id=self.engine_id)

    def load(self) -> WorkerLoad:
        """What it would report now."""
        raise NotImplementedError

    def status(self) -> WorkerStatus:
        """Its entry in the registry."""
        return WorkerStatus(record=self.record, load=self.load())
