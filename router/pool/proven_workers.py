"""Between the registry and the pool: passes on a worker once it has proven that it knows the internal token.

The signature shows that a worker wrote the announcement. The proof shows that this worker listens at the address now:
otherwise the worker may be dead, another process may have its port, and an attacker may keep the announcement in Redis
in order to be sent the token.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.worker import WorkerRecord, WorkerStatus
from baton_serve.router.pool.discovery import Follower
from baton_serve.router.upstream.internal_calls import WorkerHello

log = logging.getLogger("baton.router")

#: Seconds until a worker is asked again; doubled up to the maximum.
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 5.0
#: Seconds between two log lines about workers that are not used.
LOG_EVERY_S = 60.0


class ProvenWorkers:
    """A ``Follower`` of the registry that passes on the entries of proven workers. ``close`` it at the end.

    Each worker has to prove it once. If another process takes its port later, the worker is unreachable in between,
    and ``health.py`` asks for the proof again before the worker is used again.
    """

    def __init__(self, pool: Follower[WorkerStatus], hello: WorkerHello | None, outcomes: Counter[str]) -> None:
        """``hello`` None: there is no token, and all entries are passed on.

        ``outcomes`` counts answers: proven, wrong, none.
        """
        self._pool = pool
        self._hello = hello
        self._outcomes = outcomes
        self._statuses: list[WorkerStatus] = []
        self._proven: set[_Identity] = set()
        self._asking: dict[_Identity, asyncio.Task[None]] = {}
        self._first_asked: set[_Identity] = set()
        self._next_line_s = 0.0
        #: Set once the registry's first list has come, and each worker on it was asked.
        self.met = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ProvenWorkers {len(self._proven)} proven, {len(self._asking)} asked>"

    def apply(self, statuses: Iterable[WorkerStatus], /) -> None:
        """Take over the registry's list. Needs a running loop."""
        self._statuses = list(statuses)
        if self._hello is not None:
            present = {_identity(status.record): status.record for status in self._statuses}
            self._proven &= present.keys()
            for identity in self._asking.keys() - present.keys():
                self._asking.pop(identity).cancel()
            for identity in present.keys() - self._proven - self._asking.keys():
                self._first_asked.add(identity)
                task = self._asking[identity] = asyncio.create_task(self._ask(self._hello, present[identity]))
                task.add_done_callback(partial(self._ended, identity))
            self._first_asked &= present.keys()
        self._pass_on()

    async def close(self) -> None:
        """Stop asking."""
        await asyncio.gather(*map(end_task, self._asking.values()))

    def _pass_on(self) -> None:
        proven = self._hello is None
        self._pool.apply([status for status in self._statuses if proven or _identity(status.record) in self._proven])
        if not self._first_asked:
            self.met.set()

    async def _ask(self, hello: WorkerHello, record: WorkerRecord) -> None:
        """Ask a worker until it has proven it. Cancelled when the registry no longer lists the worker."""
        identity, retry_s = _identity(record), FIRST_RETRY_S
        while not await self._proves(hello, record):
            self._first_asked.discard(identity)
            self._pass_on()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)
        self._first_asked.discard(identity)
        self._proven.add(identity)
        self._pass_on()

    def _ended(self, identity: _Identity, task: asyncio.Task[None]) -> None:
        """Forget a finished task, whatever its outcome: a worker that has not proven it may be asked again."""
        if self._asking.get(identity) is task:
            del self._asking[identity]
            self._first_asked.discard(identity)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("asking worker %s for its proof met a bug", identity[0], exc_info=error)

    async def _proves(self, hello: WorkerHello, record: WorkerRecord) -> bool:
        try:
            proven = await hello.proves(record)
        except Exception as error:  # noqa: BLE001 (logged; the worker is asked again)
            is_bug = not isinstance(error, CallError)
            self._outcomes["none"] += 1
            self._complain(record, f"asking it for its proof met a bug: {error!r}" if is_bug else str(error))
            return False
        self._outcomes["proven" if proven else "wrong"] += 1
        if not proven:
            self._complain(record, "it did not prove that it knows the internal token")
        return proven

    def _complain(self, record: WorkerRecord, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + LOG_EVERY_S
            log.warning("worker %s at %s is not used: %s", record.worker_id, record.internal_url or record.url, why)


_Identity = tuple[str, str, str, str]


def _identity(record: WorkerRecord) -> _Identity:
    return record.worker_id, record.engine_id, record.url, record.internal_url
