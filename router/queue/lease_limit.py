"""How much of each prefill worker's cache is under leases, and which ones therefore get no new prompt.

Blocks that wait for a decode worker cannot be used for prompts. Without a limit, a burst beyond what decode workers can
take fills P's cache with prompts that no D has read yet; P, out of blocks, then delays prompts that could be decoded.
"""

from __future__ import annotations

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.pool import Worker, WorkerPool


class _Ours:
    """Blocks of one worker under leases of this router: now, and when ``load`` was reported."""

    __slots__ = ("load", "num_held", "num_held_at_load")

    def __init__(self, load: WorkerLoad) -> None:
        self.load = load
        self.num_held = 0
        self.num_held_at_load = 0


class LeaseLimit:
    """Leased blocks per worker: as workers report them, corrected by this router's hand-offs since.

    Wakes waiting requests when there is room again.
    """

    def __init__(self, max_fraction: float, pool: WorkerPool) -> None:
        self._max_fraction = max_fraction
        self._pool = pool
        self._by_engine: dict[str, _Ours] = {}
        self._by_lease: dict[str, tuple[Worker, _Ours, int]] = {}
        pool.on_gone.append(self._forget)

    def __len__(self) -> int:
        return len(self._by_lease)

    def hold(self, lease_id: str, worker: Worker, num_tokens: int) -> None:
        """Note that the worker keeps the blocks of ``num_tokens`` tokens for a request of this router."""
        if not worker.usage.block_size or not self._pool.knows(worker):
            return
        ours = self._ours(worker)
        num_blocks = -(-num_tokens // worker.usage.block_size)
        ours.num_held += num_blocks
        self._by_lease[lease_id] = (worker, ours, num_blocks)

    def holds(self, lease_id: str) -> bool:
        """Whether blocks of any worker are counted under this lease."""
        return lease_id in self._by_lease

    def end(self, lease_id: str) -> None:
        """Note that the blocks were read, released or lost. Does nothing if the lease had ended before."""
        worker, ours, num_blocks = self._by_lease.pop(lease_id, (None, None, 0))
        if worker is None or ours is None:
            return
        was_full = not self.allows(worker)
        ours.num_held -= num_blocks
        if was_full and self.allows(worker):
            self._pool.room_changed()

    def count(self, worker: Worker) -> int:
        """Number of the worker's blocks under leases of all routers.

        Blocks shared by several leases count once in the worker's report, but once per lease in this router's part.
        """
        if not self._pool.knows(worker):
            return 0
        ours = self._ours(worker)
        if worker.usage.load_is_old or not worker.kind.reports_leases:
            return ours.num_held
        return max(0, worker.usage.load.leased_blocks + ours.num_held - ours.num_held_at_load)

    def since_report(self, worker: Worker) -> int:
        """How many more of the worker's blocks are under leases of this router than when the worker reported."""
        if not self._pool.knows(worker):
            return 0
        ours = self._ours(worker)
        return ours.num_held - ours.num_held_at_load

    def allows(self, worker: Worker) -> bool:
        """Whether the worker may be sent a prompt. Always true if the worker does not report the size of its cache."""
        return not worker.usage.num_blocks or self.count(worker) <= self._max_fraction * worker.usage.num_blocks

    def _ours(self, worker: Worker) -> _Ours:
        key = worker.key
        ours = self._by_engine.get(key)
        if ours is None:
            ours = self._by_engine[key] = _Ours(worker.usage.load)
        elif ours.load is not worker.usage.load:  # every change calls this first, so none since the report is missed
            ours.load = worker.usage.load
            ours.num_held_at_load = ours.num_held
        return ours

    def _forget(self, engine_id: str) -> None:
        self._by_engine.pop(engine_id, None)
