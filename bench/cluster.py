"""Workers of the demo model that stay, and routers that come and go, for measurements and the screenshot."""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from baton_serve.baton.cluster.cluster import DEMO_WORKER, Cluster
from baton_serve.baton.cluster.process import ROUTER, ProcessSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from baton_serve.baton.cluster.process import Flags

STOP_TIMEOUT_S = 10.0


@asynccontextmanager
async def workers(prefill: Sequence[Flags], decode: Sequence[Flags]) -> AsyncIterator[Cluster]:
    """A cluster without a router. Each item of ``prefill`` and ``decode`` has the flags of one such worker.

    Raises ChildDiedError.
    """
    flags = {"prefill": prefill, "decode": decode}
    specs = {
        f"{role}-{number}": ProcessSpec(role, {**DEMO_WORKER, "dtype": "float32", **own})
        for role, each in flags.items()
        for number, own in enumerate(each)
    }
    with TemporaryDirectory(prefix="baton-bench-") as folder:
        async with Cluster(Path(folder), specs, stop_timeout_s=STOP_TIMEOUT_S) as cluster:
            yield cluster


@asynccontextmanager
async def router(cluster: Cluster, **flags: Any) -> AsyncIterator[str]:
    """The URL of a router that reaches all workers; ``log_level="warning"`` is a flag. Raises ChildDiedError."""
    spec = ProcessSpec(ROUTER, {"port": 0, **{flag.replace("_", "-"): value for flag, value in flags.items()}})
    process = await cluster.add("router", spec, num_workers=len(cluster.named("prefill", "decode")))
    yield process.url
    await cluster.remove("router")


async def totals(cluster: Cluster, *names: str) -> dict[str, float]:
    """The metrics of these processes, by name: the sums of all samples. Raises httpx.HTTPError."""
    total: defaultdict[str, float] = defaultdict(float)
    for name in names:
        for sample in await cluster.metrics(name):
            total[sample.name] += sample.value
    return dict(total)
