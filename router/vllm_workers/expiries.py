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
    """One server's counts when this router last looked at them."""

    started_s: float
    engine_id: str
    num_expired: int
    num_late: int


class Expiries:
    """Compares the counts of all servers."""

    def __init__(self, use_expected: Callable[[str, int], int], counts: Counter[str]) -> None:
        """``use_expected``: by engine id, how many of so many expiries were expected. ``counts``, by worker, gets the
        unexpected ones.
        """
        self._use_expected = use_expected
        self._counts = counts
        self._seen: dict[Worker, _Seen] = {}

    def note(self, worker: Worker, load: ServerLoad) -> None:
        """Take over a new reading of a server's counts. Without the engine's id, nobody knows what was expected."""
        if not worker.engine_id:
            return
        now = _Seen(load.started_s, worker.engine_id, load.num_expired, load.num_late_notifications)
        seen = self._seen.get(worker)
        self._seen[worker] = now
        if seen is None or (seen.started_s, seen.engine_id) != (now.started_s, now.engine_id):
            seen = now
        num_expired = max(0, now.num_expired - seen.num_expired)
        num_unexpected = self._num_unexpected(worker.engine_id, load.num_engines, num_expired)
        num_unexpected += max(0, now.num_late - seen.num_late)
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

    def _num_unexpected(self, engine_id: str, num_engines: int, num_expired: int) -> int:
        base = engine_id.removesuffix(f"{_RANK}0")
        engine_ids = [engine_id] if base == engine_id else [f"{base}{_RANK}{rank}" for rank in range(num_engines)]
        for one in engine_ids:
            num_expired -= self._use_expected(one, num_expired)
        return num_expired
