"""vLLM's own count of leases that expired, against what this router expected.

A lease that expires although the router renews it means that a D may read blocks that hold other tokens by then.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from baton_serve.router.pool import Worker
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases
from baton_serve.router.vllm.servers.load import ServerLoad

log = logging.getLogger("baton.router")


class _Seen(NamedTuple):
    """One server's counts when this router last looked at them."""

    started_s: float
    engine_id: str
    num_expired: int
    num_late: int


class Expiries:
    """Compares the counts of all servers."""

    def __init__(self, leases: VllmLeases, counts: Counter[str]) -> None:
        """``leases`` say what was expected. ``counts``, by worker, gets what was not."""
        self._leases = leases
        self._counts = counts
        self._seen: dict[Worker, _Seen] = {}

    def note(self, worker: Worker, load: ServerLoad) -> None:
        """Take over a new reading of a server's counts. Without the engine's id, it is not known what was expected."""
        if not worker.engine_id:
            return
        now = _Seen(load.started_s, worker.engine_id, load.num_expired, load.num_late_notifications)
        seen = self._seen.get(worker)
        self._seen[worker] = now
        if seen is None or (seen.started_s, seen.engine_id) != (now.started_s, now.engine_id):
            seen = now
        num_unexpected = self._num_unexpected(worker.engine_ids, now.num_expired - seen.num_expired, late=False)
        num_unexpected += self._num_unexpected(worker.engine_ids, now.num_late - seen.num_late, late=True)
        if num_unexpected:
            self._counts[worker.worker_id] += num_unexpected
            log.warning(
                "worker %s: %d leases expired that this router did not expect to; decode workers may have read blocks "
                "that were overwritten, unless somebody else uses this server too",
                worker.worker_id,
                num_unexpected,
            )

    def forget(self, worker: Worker) -> None:
        """Forget a worker that left."""
        self._seen.pop(worker, None)

    def _num_unexpected(self, engine_ids: Iterable[str], num_seen: int, *, late: bool) -> int:
        num_seen = max(0, num_seen)
        for engine_id in engine_ids:
            num_seen -= self._leases.use_expected(engine_id, num_seen, late=late)
        return num_seen
