"""A router is killed with requests that are held and requests that decode."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deploy.drill.admin import until
from deploy.drill.deployment import NUM_FULL, docker
from deploy.drill.errors import DrillError
from deploy.drill.peace import afterwards, say, start_again
from deploy.drill.streams import EXACT, LOST, TIMEOUT_S, Stream, begin, demand, gather, told

if TYPE_CHECKING:
    from deploy.drill.peace import Stage

#: Streams of the router that is killed: so many that some are held. Streams of the other router: so few that each D has
#: room for some of the first.
NUM_DOOMED, NUM_KEPT = 2 * NUM_FULL, NUM_FULL // 2
#: The other router notices the death at once and ends the leases of the dead one within this time, seconds. They would
#: take longer to expire.
LEASES_S = 2.0


def kill_router(stage: Stage) -> None:
    """Kill a router: its clients lose their streams and get the answer from the other router. Raises DrillError."""
    (victim, doomed), (_, other) = list(stage.deployment.routers().items())
    doomed_id = stage.admin.router_id(doomed)
    with ThreadPoolExecutor(NUM_DOOMED + NUM_KEPT + 1) as pool:
        _, kept = begin(pool, [other] * NUM_KEPT, stage.expected)
        streams, lost = begin(pool, [doomed] * NUM_DOOMED, stage.expected)
        states = until(TIMEOUT_S, "both states are there", lambda: _states(stage, other, doomed_id))
        killed = pool.submit(docker, "kill", victim)
        until(TIMEOUT_S, "no lease is left", lambda: stage.admin.num_leases(other) == 0, 0.005)
        ended_s = time.monotonic()
        killed.result()
        demand(gather(lost), {LOST: NUM_DOOMED}, "on the router that was killed")
        again = gather([pool.submit(Stream(other).run, stage.expected) for _ in lost])
        demand(again, {EXACT: NUM_DOOMED}, "of the other router, asked again")
        demand(gather(kept), {EXACT: NUM_KEPT}, "on the router that was not killed")
    took_s = max(0.0, ended_s - min(stream.ended_s for stream in streams))
    say(f"killed one router with {told(states)}: {told(gather(lost))}; on the other one {told(gather(kept))}")
    say(f"no lease was left {took_s * 1000:.0f} ms after its first stream broke off; asked again: {told(again)}")
    if took_s > LEASES_S:
        raise DrillError(f"the leases of the killed router took {took_s:.1f} s to end")
    start_again(stage, victim)
    afterwards(stage, "one router killed")


def _states(stage: Stage, url: str, router_id: str) -> Counter[str] | None:
    """How many requests of that router are in each state; None unless some are held and some decode."""
    states = Counter(str(row["state"]) for row in stage.admin.requests(url) if row["router"] == router_id)
    return states if states["held"] and states["decoding"] else None
