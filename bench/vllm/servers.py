"""One stock P and one stock D, and what they say about themselves."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from baton_serve.baton.processes.vllm.connectors import STOCK
from baton_serve.baton.processes.vllm.program import find_vllm
from bench.cluster import totals
from bench.connector.pair import PairShape, pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bench.connector.pair import Pair

#: Seconds for which P keeps blocks that nobody has read or renewed.
LEASE_DURATION_S = 6
BLOCK_SIZE = 32
#: P's whole cache, in blocks: small, so that blocks are soon used again once they are free.
NUM_BLOCKS = 256
D_MAX_NUM_SEQS = 2
#: Routers get the same prompts one after the other: what one leaves in the caches must not help the next.
ARGS = f"--max-model-len 4096 --block-size {BLOCK_SIZE} --no-enable-prefix-caching"
P_ARGS = f"--max-num-seqs 16 --num-gpu-blocks-override {NUM_BLOCKS}"
D_ARGS = f"--max-num-seqs {D_MAX_NUM_SEQS}"

EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
NOTIFIED_LATE = "vllm:nixl_num_notifications_after_expiry_total"
READS = "vllm:nixl_xfer_time_seconds_count"
USAGE = "vllm:kv_cache_usage_perc"
UNFINISHED = ("vllm:num_requests_running", "vllm:num_requests_waiting")
STALE = b"Potentially invalid KV blocks"


class Servers:
    """The two servers, which serve."""

    def __init__(self, both: Pair) -> None:
        self._cluster = both.cluster
        self.p, self.d = both.p_place, both.d_place
        #: D's engine stands still inside; its HTTP port goes on to take requests.
        self.d_stalled = both.d_stopped

    async def metrics(self, name: str) -> dict[str, float]:
        """The sums of a server's metrics, by name; ``name`` is ``p`` or ``d``."""
        return await totals(self._cluster, name)

    async def used_blocks(self) -> float:
        """How many of P's blocks requests and leases hold. One block is vLLM's own, and is never free."""
        return (await self.metrics("p"))[USAGE] * (NUM_BLOCKS - 1)

    async def idle(self) -> bool:
        """Whether neither of them has a request, and P holds nothing."""
        p, d = await self.metrics("p"), await self.metrics("d")
        return p[USAGE] == 0 and not any(each[name] for each in (p, d) for name in UNFINISHED)

    async def counts(self) -> dict[str, float]:
        """What is counted: expired leases, reads that P noticed too late, lines about them in its log, and reads."""
        p, d = await self.metrics("p"), await self.metrics("d")
        return {
            "expired": p.get(EXPIRED, 0.0),
            "notified_late": p.get(NOTIFIED_LATE, 0.0),
            "stale_lines": (self._cluster.folder / "p.log").read_bytes().count(STALE),
            "reads": d.get(READS, 0.0),
        }


@asynccontextmanager
async def servers(vllm: str | None, folder: Path) -> AsyncIterator[Servers]:
    """Start both. Their logs are in ``folder``. Raises VllmError and ChildDiedError."""
    shape = PairShape(STOCK, LEASE_DURATION_S, ARGS, P_ARGS, D_ARGS)
    async with pair(find_vllm(vllm), shape, folder) as both:
        yield Servers(both)
