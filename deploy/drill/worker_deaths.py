"""A worker of each role is killed with requests in it, and no client notices."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import TYPE_CHECKING

from deploy.drill.admin import SHORT_ID_CHARS, until
from deploy.drill.deployment import NUM_FULL, docker
from deploy.drill.errors import DrillError
from deploy.drill.peace import afterwards, say, start_again
from deploy.drill.streams import EXACT, TIMEOUT_S, begin, demand, gather, told

if TYPE_CHECKING:
    from deploy.drill.peace import Stage


def kill_prefill(stage: Stage) -> None:
    """Kill the P with the blocks of the most held requests, which are prefilled again then. Raises DrillError."""
    urls, workers, num_streams = stage.urls(), _by_host(stage, "prefill"), 2 * NUM_FULL
    with ThreadPoolExecutor(num_streams) as pool:
        _, futures = begin(pool, islice(cycle(urls), num_streams), stage.expected)
        host, num_held = until(TIMEOUT_S, "requests are held", lambda: _busiest(stage, urls[0], "prefill", "held"))
        docker("kill", workers[host])
        outcomes = gather(futures)
    say(f"killed one prefill with {num_held} held requests: {told(outcomes)}")
    demand(outcomes, {EXACT: num_streams}, "when one prefill was killed")
    start_again(stage, workers[host])
    afterwards(stage, "one prefill killed")


def kill_decode(stage: Stage) -> None:
    """Kill the D that decodes the most streams, which migrate then. Raises DrillError."""
    urls, workers = stage.urls(), _by_host(stage, "decode")
    with ThreadPoolExecutor(NUM_FULL) as pool:
        _, futures = begin(pool, islice(cycle(urls), NUM_FULL), stage.expected)
        host, num_decoding = until(TIMEOUT_S, "a D decodes", lambda: _busiest(stage, urls[0], "decode", "decoding"))
        docker("kill", workers[host])
        outcomes = gather(futures)
    num_resumed = sum(stage.admin.num_resumed(url) for url in urls)
    say(f"killed one decode with {num_decoding} streams: {told(outcomes)}; {num_resumed} went on with another one")
    demand(outcomes, {EXACT: NUM_FULL}, "when one decode was killed")
    if not num_resumed:
        raise DrillError("the decode worker had no stream left when it was killed")
    start_again(stage, workers[host])
    afterwards(stage, "one decode killed")


def _by_host(stage: Stage, role: str) -> dict[str, str]:
    """The containers of a role by host name. Asked beforehand: streams may be over before compose has answered."""
    return {each[:SHORT_ID_CHARS]: each for each in stage.deployment.containers(role)}


def _busiest(stage: Stage, url: str, role: str, state: str) -> tuple[str, int] | None:
    """The host name of the worker that the most requests in ``state`` depend on, and how many they are."""
    workers = Counter(row[f"{role}_worker"] for row in stage.admin.requests(url) if row["state"] == state)
    if not workers:
        return None
    worker_id, number = workers.most_common(1)[0]
    return stage.admin.host_of(url, worker_id), number
