"""What processes of a cluster say of themselves."""

from __future__ import annotations

from collections import defaultdict

from baton_serve.baton.cluster.cluster import Cluster


async def totals(cluster: Cluster, *names: str) -> dict[str, float]:
    """The metrics of these processes, by name: the sums of all samples. Raises httpx.HTTPError."""
    total: defaultdict[str, float] = defaultdict(float)
    for name in names:
        for sample in await cluster.metrics(name):
            total[sample.name] += sample.value
    return dict(total)
