"""Deaths in a simulated cluster, at times and places that the seed says."""

from __future__ import annotations

import random

from bench.scale.cluster.cluster import Cluster


def kill_workers(cluster: Cluster, num_p: int, num_d: int, seconds: float, seed: int) -> None:
    """Kill that many P and D within ``seconds``; others take their place after a while."""
    rng = random.Random(f"workers {seed}")
    for machine in (*rng.sample(cluster.p, num_p), *rng.sample(cluster.d, num_d)):
        cluster.loop.call_at(rng.uniform(0.2, 0.9) * seconds, cluster.kill, machine)


def kill_routers(cluster: Cluster, num: int, seconds: float, seed: int) -> None:
    """Kill that many routers within ``seconds``; the others take their clients. The last one is left."""
    rng = random.Random(f"routers {seed}")
    for router in rng.sample(cluster.routers, num):
        cluster.loop.call_at(rng.uniform(0.2, 0.9) * seconds, cluster.kill_router, router)


def pause_renewals(cluster: Cluster, mean_s: float, every_s: float, seconds: float, seed: int) -> None:
    """Have each router's renewals stand still now and then: ``every_s`` apart, for ``mean_s``, both on average."""
    rng = random.Random(f"pauses {seed}")
    for router in cluster.routers:
        at_s = rng.expovariate(1 / every_s)
        while at_s < seconds:
            cluster.loop.call_at(at_s, cluster.leases.pause, router.name, rng.expovariate(1 / mean_s))
            at_s += rng.expovariate(1 / every_s)
