"""vLLM's own count of leases that expired, against what this router expected.

A lease that expires although the router renews it means that a D may read blocks that hold other tokens by then.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from router.pool import Worker
    from router.vllm_workers.load import ServerLoad

log = logging.getLogger("baton.router")

#: What an engine's id ends with where a server has several engines (data parallelism), and for the first of them.
_RANK = "_dp"


@dataclass
class _Seen:
    """One server's counts when this router first saw its engine, and what was reported since."""

    started_s: float
    engine_id: str
    num_expired: int
    num_late: int
    num_expected: int
    told: int = 0


class Expiries:
    """Compares the counts of all servers. ``expected``: by engine id, leases that this router let expire."""

    def __init__(self, expected: Callable[[str], int], counts: Counter[str]) -> None:
        """``counts``, by worker, gets the unexpected ones."""
        self._expected = expected
        self._counts = counts
        self._seen: dict[Worker, _Seen] = {}

    def note(self, worker: Worker, load: ServerLoad) -> None:
        """Take over a new reading of a server's counts."""
        seen = self._seen.get(worker)
        expected = self._num_expected(worker.engine_id, load.num_engines)
        if seen is None or (seen.started_s, seen.engine_id) != (load.started_s, worker.engine_id):
            self._seen[worker] = _Seen(
                load.started_s, worker.engine_id, load.num_expired, load.num_late_notifications, expected
            )
            return
        num_expired = max(0, load.num_expired - seen.num_expired - (expected - seen.num_expected))
        num_unexpected = num_expired + max(0, load.num_late_notifications - seen.num_late)
        if num_unexpected > seen.told:
            self._counts[worker.worker_id] += num_unexpected - seen.told
            log.warning(
                "worker %s: %d leases expired that this router did not expect to; decode workers may have read blocks "
                "that were overwritten, unless somebody else uses this server too",
                worker.worker_id,
                num_unexpected - seen.told,
            )
            seen.told = num_unexpected

    def forget(self, worker: Worker) -> None:
        """Forget a worker that left."""
        self._seen.pop(worker, None)

    def _num_expected(self, engine_id: str, num_engines: int) -> int:
        base = engine_id.removesuffix(f"{_RANK}0")
        if base == engine_id:
            return self._expected(engine_id)
        return sum(self._expected(f"{base}{_RANK}{rank}") for rank in range(num_engines))
