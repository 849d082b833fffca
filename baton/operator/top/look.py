"""What routers and workers had at one moment: from ``/admin/live``, or from ``/admin/requests`` and ``/admin/workers``.

Pure. Fields that an answer lacks are None or 0, so that a router of a neighbouring version can be shown as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton_serve.baton.operator.tables import BLOCK_STATES
from baton_serve.baton.operator.top.rates import Rates, rates_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Item = Mapping[str, Any]


@dataclass(frozen=True)
class WorkerRow:
    """One worker's row: how full the worker is and what its blocks are used for."""

    item: Item
    #: Number of blocks by state; empty when the worker has not reported them.
    blocks: Mapping[str, int]


@dataclass(frozen=True)
class Look:
    """The data of one frame. ``requests`` are those of the answer, oldest first, each with ``in_state_ms``."""

    requests: Sequence[Item]
    workers: Sequence[WorkerRow]
    counts: Mapping[str, int]
    #: Live requests that are not in ``requests``.
    num_hidden: int = 0
    #: All routers on the same Redis, first the one that was asked; empty when the answer does not list them.
    routers: Sequence[Item] = ()
    #: The rates of all routers together.
    rates: Rates = field(default_factory=Rates)

    def oldest_ms(self, state: str) -> float | None:
        """The longest time that a request has been in a state; None when no request is in it."""
        return max((float(item["in_state_ms"]) for item in self.requests if item.get("state") == state), default=None)


def look_at(answer: Item) -> Look:
    """The look that an answer gives: a snapshot of ``/admin/live``, or an object with ``requests`` and ``workers``."""
    requests = [{**item, "in_state_ms": _in_state_ms(item)} for item in answer.get("requests", ())]
    requests.sort(key=lambda item: -float(item.get("age_ms") or 0))
    counts = answer.get("counts") or Counter(str(item.get("state")) for item in requests)
    workers = [WorkerRow(item, _blocks(item)) for item in (*answer.get("workers", ()), *answer.get("lost", ()))]
    return Look(
        requests,
        workers,
        counts,
        num_hidden=int(answer.get("num_hidden") or 0),
        routers=answer.get("routers") or (),
        rates=rates_of(answer.get("history") or {}),
    )


def _in_state_ms(item: Item) -> float:
    given = item.get("in_state_ms")
    if given is not None:
        return float(given)
    spent_ms = sum(float(ms) for ms in (item.get("phases_ms") or {}).values())
    return max(0.0, float(item.get("age_ms") or 0) - spent_ms)


def _blocks(item: Item) -> Mapping[str, int]:
    found = {state: int(item.get(f"{state}_blocks") or 0) for state in BLOCK_STATES}
    return found if any(found.values()) else {}
