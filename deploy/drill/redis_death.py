"""Redis is killed and comes back empty, and no client notices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import TYPE_CHECKING

from deploy.drill.admin import until
from deploy.drill.deployment import NUM_FULL, docker
from deploy.drill.peace import afterwards, know_all, say
from deploy.drill.streams import EXACT, TIMEOUT_S, begin, demand, gather, told

if TYPE_CHECKING:
    from deploy.drill.peace import Stage


def kill_redis(stage: Stage) -> None:
    """Kill Redis while it has leases, and start it again. Raises DrillError unless every answer is exact."""
    urls, num_streams = stage.urls(), 2 * NUM_FULL
    (victim,) = stage.deployment.containers("redis")
    with ThreadPoolExecutor(num_streams) as pool:
        _, futures = begin(pool, islice(cycle(urls), num_streams), stage.expected)
        num_leases = until(TIMEOUT_S, "Redis keeps leases", lambda: stage.admin.num_leases(urls[0]))
        docker("kill", victim)
        docker("start", victim)
        outcomes = gather(futures)
    say(f"killed redis with {num_leases} leases, and started it again, empty: {told(outcomes)}")
    demand(outcomes, {EXACT: num_streams}, "when Redis was killed")
    know_all(stage.deployment, stage.admin)
    afterwards(stage, "Redis killed")
