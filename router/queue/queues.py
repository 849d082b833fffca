"""The two queues of a router, and what they are together: how long, how large, and when they should be empty."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator

from baton_serve.router.pool import Reservation
from baton_serve.router.queue.drain_rate import MAX_WAIT_S
from baton_serve.router.queue.worker_queue import Waiter, WorkerQueue


class Queues:
    """``prefill``: requests that wait for a P with room. ``held``: those whose blocks wait for a D with room."""

    def __init__(self, give_back: Callable[[Reservation], None]) -> None:
        """``give_back`` releases a reserved place that will not be used."""
        self.prefill = WorkerQueue(give_back)
        self.held = WorkerQueue(give_back)

    def __len__(self) -> int:
        return len(self.prefill) + len(self.held)

    @property
    def num_bytes(self) -> int:
        """Size of the bodies of all waiting requests."""
        return self.prefill.num_bytes + self.held.num_bytes

    def less_urgent(self, priority: int) -> Iterator[Waiter]:
        """The waiting requests that one of this priority may displace, the first to be displaced first."""
        return heapq.merge(self.prefill.less_urgent(priority), self.held.less_urgent(priority), reverse=True)

    def retry_after_s(self) -> float:
        """Seconds, from 1 to 60, after which all requests that wait now should have found room."""
        now_s = asyncio.get_running_loop().time()
        waits_s = [queue.drain_rate.wait_s(len(queue), now_s) for queue in (self.prefill, self.held)]
        return min(max(waits_s), MAX_WAIT_S)
