"""The leases of one engine in the scheduler's process: in the store that routers see.

The scheduler's thread never waits for the store, to which another thread talks. It says what has begun and what has
been read, and takes what has ended at the beginning of each step.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from baton_serve.core.leases.ids import new_id
from baton_serve.core.leases.store import LeaseState
from baton_serve.workers.leases.keeper import LeaseKeeper

if TYPE_CHECKING:
    from baton_serve.core.leases.store import LeaseStore
    from baton_serve.workers.vllm.loop_thread import LoopThread

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only


class SchedulerLeases:
    """Call all methods in the thread of the scheduler."""

    def __init__(
        self, store: LeaseStore, thread: LoopThread, engine_id: str, *, duration_ms: int, redis_grace_ms: int
    ) -> None:
        self._thread = thread
        self._keeper = LeaseKeeper(
            store,
            engine_id,
            on_end=lambda *end: self._ends.append(end),
            on_failed=self._note_failure,
            duration_ms=duration_ms,
            redis_grace_ms=redis_grace_ms,
        )
        #: Both ways, of the leases that have not ended.
        self._lease_of: dict[str, str] = {}
        self._request_of: dict[str, str] = {}
        #: What the keeper has ended; it is filled by the keeper's loop.
        self._ends: deque[tuple[str, LeaseState]] = deque()
        self._has_failed = False

    def __len__(self) -> int:
        """The number of leases that have not ended. Any thread may ask."""
        return len(self._lease_of)

    def start(self) -> None:
        """Begin to talk to the store."""
        self._thread.call(self._keeper.start)

    def grant(self, request_id: str) -> str | None:
        """Begin the lease of a hand-off; returns its id. None if leases cannot be kept any more."""
        if self._has_failed:
            return None
        lease_id = self._lease_of[request_id] = new_id()
        self._request_of[lease_id] = request_id
        self._thread.call(self._keeper.grant, lease_id)
        return lease_id

    def done(self, request_id: str) -> None:
        """D has read the blocks, or they are free for another reason. Does nothing if the lease has ended."""
        if (lease_id := self._lease_of.pop(request_id, None)) is not None:
            del self._request_of[lease_id]
            self._thread.call(self._keeper.tell, lease_id, LeaseState.DONE)

    def take_ended(self) -> dict[str, LeaseState]:
        """The requests whose leases have ended since the last call: RELEASED by a router, or EXPIRED."""
        ended = {}
        while self._ends:
            lease_id, state = self._ends.popleft()
            if (request_id := self._request_of.pop(lease_id, None)) is not None:
                del self._lease_of[request_id]
                ended[request_id] = state
        if self._has_failed:
            ended |= dict.fromkeys(self._lease_of, LeaseState.EXPIRED)
            self._lease_of.clear()
            self._request_of.clear()
        return ended

    def stop(self) -> None:
        """End all leases, also in the store. Call it once."""
        if not self._thread.finish(self._keeper.stop()):
            logger.warning("The store of leases does not answer: the leases of this engine end by themselves.")

    # On the keeper's loop.

    def _note_failure(self, error: Exception) -> None:
        logger.error("Leases cannot be kept any more, and are vLLM's own from now on: %s", error)
        self._has_failed = True
