"""One stock P and one stock D: how they are started, and what they say about themselves."""

from __future__ import annotations

from baton_serve.baton.processes.vllm.connectors import STOCK
from bench.cluster import totals
from bench.connector.pair import USAGE, Pair, PairShape

#: Seconds for which P keeps blocks that nobody has read or renewed.
LEASE_DURATION_S = 6
D_MAX_NUM_SEQS = 2
SHAPE = PairShape(
    STOCK,
    LEASE_DURATION_S,
    # Routers get the same prompts one after the other: what one leaves in the caches must not help the next.
    "--max-model-len 4096 --block-size 32 --no-enable-prefix-caching",
    # So few blocks that they are soon used again once they are free.
    p_args="--max-num-seqs 16 --num-gpu-blocks-override 256",
    d_args=f"--max-num-seqs {D_MAX_NUM_SEQS}",
)

EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
NOTIFIED_LATE = "vllm:nixl_num_notifications_after_expiry_total"
READS = "vllm:nixl_xfer_time_seconds_count"
UNFINISHED = ("vllm:num_requests_running", "vllm:num_requests_waiting")
STALE = b"Potentially invalid KV blocks"


async def are_idle(servers: Pair) -> bool:
    """Whether neither of them has a request, and P holds nothing."""
    p, d = [await totals(servers.cluster, name) for name in "pd"]
    return p[USAGE] == 0 and not any(each[name] for each in (p, d) for name in UNFINISHED)


async def counts(servers: Pair) -> dict[str, float]:
    """What is counted: expired leases, reads that P noticed too late, lines about them in its log, and reads."""
    return {
        "expired": await servers.metric("p", EXPIRED),
        "notified_late": await servers.metric("p", NOTIFIED_LATE),
        "stale_lines": (servers.cluster.folder / "p.log").read_bytes().count(STALE),
        "reads": await servers.metric("d", READS),
    }
