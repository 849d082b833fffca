"""Workers that left without saying so. The list is for people only.

A worker that leaves in order announces before that it drains, or, a vLLM server, withdraws its announcement. A worker
that was killed, hangs or has lost Redis just stops announcing. Each router notices that by itself.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from baton_serve.router.pool.worker import Worker

log = logging.getLogger("baton.router")

#: Most lost workers that are kept; the oldest are forgotten first.
MAX_LOST = 100
#: Seconds after which a lost worker is forgotten.
KEEP_S = 3600.0


@dataclass(frozen=True)
class LostWorker:
    """A worker that is gone, and what it had when this router last heard of it."""

    id: str
    #: What ``baton up`` called it; empty: it had no name.
    name: str
    url: str
    role: str
    kind: str
    #: None: it never told.
    models: tuple[str, ...] | None
    #: Requests that this router had there.
    in_flight: int
    #: As the worker last reported.
    running: int
    leased_blocks: int
    #: Unix seconds, by this router's clock.
    gone_at: float


class LostWorkers:
    """Call ``left`` with each worker that left the pool, and ``came`` with all known workers when some came."""

    def __init__(self, num_lost: Counter[str], clock: Callable[[], float] = time.time) -> None:
        """``num_lost`` counts by role. ``clock``: Unix seconds."""
        self._num_lost = num_lost
        self._clock = clock
        self._lost: dict[str, LostWorker] = {}

    def __repr__(self) -> str:
        return f"<LostWorkers {sorted(self._lost)}>"

    def left(self, worker: Worker) -> None:
        """Note a worker that left the pool. A worker added by address is not lost: only a call or DNS removes it."""
        if worker.given is not None or worker.draining or worker.standing.has_withdrawn:
            return
        lost = _as_it_was(worker, self._clock())
        self._lost.pop(lost.id, None)  # the newest is the last
        self._lost[lost.id] = lost
        if len(self._lost) > MAX_LOST:
            del self._lost[next(iter(self._lost))]
        self._num_lost[lost.role] += 1
        who = (f"{lost.name} {lost.id}" if lost.name else lost.id, lost.role, lost.url)
        had = (lost.in_flight, lost.leased_blocks)
        log.warning("worker %s (%s, %s) left without draining, with %d requests and %d leased blocks", *who, *had)

    def came(self, known: Iterable[Worker]) -> None:
        """Forget each lost worker that is known again, or whose URL, or name on the same host, another one has."""
        if not self._lost:
            return
        back = {place for worker in known for place in _places(worker.worker_id, worker.url, worker.name)}
        for lost in tuple(self._lost.values()):
            if not back.isdisjoint(_places(lost.id, lost.url, lost.name)):
                del self._lost[lost.id]
                log.info("lost worker %s, or another one in its place, is there again", lost.id)

    def forget(self, worker_id: str) -> LostWorker | None:
        """Forget a lost worker, and return it; None if there is none with that id."""
        return self._lost.pop(worker_id, None)

    def all(self) -> list[LostWorker]:
        """The workers lost in the last ``KEEP_S`` seconds, the one that has been gone longest first."""
        since_s = self._clock() - KEEP_S
        self._lost = {lost.id: lost for lost in self._lost.values() if lost.gone_at > since_s}
        return list(self._lost.values())


def _places(worker_id: str, url: str, name: str) -> set[str | tuple[str | None, str]]:
    """What two workers share if one takes the other's place: ``baton up`` starts it by its name on another port."""
    return {worker_id, url} | ({(urlsplit(url).hostname, name)} if name else set())


def _as_it_was(worker: Worker, gone_at: float) -> LostWorker:
    return LostWorker(
        id=worker.worker_id,
        name=worker.name,
        url=worker.url,
        role=str(worker.role),
        kind=str(worker.kind.name),
        models=worker.models,
        in_flight=worker.usage.in_flight,
        running=worker.usage.load.running,
        leased_blocks=worker.usage.load.leased_blocks,
        gone_at=round(gone_at, 3),
    )
