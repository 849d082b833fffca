"""One router lists and aborts the requests of the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from deploy.drill.admin import until
from deploy.drill.deployment import NUM_FULL
from deploy.drill.errors import DrillError
from deploy.drill.peace import afterwards, say
from deploy.drill.streams import EXACT, begin, demand, gather, told

if TYPE_CHECKING:
    from deploy.drill.peace import Stage

NUM_STREAMS = 2 * NUM_FULL
STATES = ("held", "decoding")
#: Longest time until there is a request in each of these states, seconds.
STATES_S = 10.0
#: The code of the error that an aborted client gets.
ABORTED = "request_cancelled"


def abort_through_the_other_router(stage: Stage) -> None:
    """Abort one request that is held and one that decodes, and check that the other streams go on.

    Raises DrillError.
    """
    here, other = stage.urls()
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        streams, futures = begin(pool, [here] * NUM_STREAMS, stage.expected)
        ids = {stream.request_id for stream in streams}
        rows = until(STATES_S, "one request is held and one decodes", lambda: _one_of_each(stage, other, ids))
        for row in rows:
            stage.admin.abort(other, row["id"])
        outcomes = gather(futures)
    say(f"one router listed {len(ids)} streams of the other, and aborted one held and one decoding: {told(outcomes)}")
    demand(outcomes, {EXACT: NUM_STREAMS - len(rows), ABORTED: len(rows)}, "after the aborts")
    aborted = {stream.request_id for stream, future in zip(streams, futures, strict=True) if future.result() == ABORTED}
    if aborted != {row["id"] for row in rows}:
        raise DrillError("other requests ended than those that were aborted")
    afterwards(stage, "aborts")


def _one_of_each(stage: Stage, url: str, ids: set[str]) -> list[Any]:
    """A request of ``ids`` in each state; empty while there is none. Raises DrillError when some are not listed."""
    rows = stage.admin.requests(url)
    missing = ids - {row["id"] for row in rows}
    if missing:
        raise DrillError(f"{len(missing)} live requests of the other router are not listed")
    found = [next((row for row in rows if row["id"] in ids and row["state"] == state), None) for state in STATES]
    return found if all(found) else []
