"""Notifies the workers that a router is dead, so that they free at once what its requests hold there.

Every surviving router notifies every worker: no router knows which others are left, and a second notification does
nothing. This runs in the background, so a verdict never waits for it. Requests that no call ends are ended by the
expiry of their leases and by the end of the dead router's connections.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.process.task_end import finish_tasks
from baton_serve.core.protocol.router import TELL_GONE_S
from baton_serve.router.pool import Worker
from baton_serve.router.upstream.internal_calls import InternalCalls

logger = logging.getLogger(__name__)

#: Most clean-ups under way; for more deaths at once, only the expiry of leases frees blocks.
MAX_CLEANUPS = 64
#: Seconds between the attempts.
RETRY_AFTER_S = (0.05, 0.15, 0.4, 0.8)


class _Ended(msgspec.Struct):
    """The numbers of sequences and leases that a worker has ended."""

    aborted: int
    leases: int


@dataclass(slots=True)
class _Told:
    """One worker's answer, or why there is none."""

    worker_id: str
    ended: _Ended | None = None
    error: str = f"no answer after {TELL_GONE_S:g} s"


_decoder = msgspec.json.Decoder(_Ended)


class Cleanup:
    """``start`` is added to ``PeerRouters.on_dead``. ``outcomes`` counts workers: told, not_told."""

    def __init__(
        self,
        calls: InternalCalls,
        workers: Callable[[], Iterable[Worker]],
        retry_after_s: Sequence[float] = RETRY_AFTER_S,
    ) -> None:
        self._calls = calls
        self._workers = workers
        self._retry_after_s = retry_after_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Routers found dead so far.
        self.num_dead = 0
        self.outcomes: Counter[str] = Counter({"told": 0, "not_told": 0})

    def __repr__(self) -> str:
        return f"<Cleanup {len(self._tasks)} under way, {self.num_dead} dead routers, {dict(self.outcomes)}>"

    def start(self, router_id: str) -> None:
        """Notify all workers that are known now. Never raises."""
        if router_id in self._tasks:
            return
        self.num_dead += 1
        workers = {worker.internal_url: worker for worker in self._workers() if worker.internal_url}
        if len(self._tasks) >= MAX_CLEANUPS:
            self.outcomes["not_told"] += len(workers)
            logger.warning("router %s is dead: no worker was told, too many routers died at once", router_id)
            return
        task = asyncio.get_running_loop().create_task(self._tell_all(router_id, workers.values()))
        self._tasks[router_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(router_id, None))

    async def close(self) -> None:
        """Wait for the clean-ups under way, ``TELL_GONE_S`` at most. If cancelled, cancels them."""
        await finish_tasks(self._tasks.values())

    async def _tell_all(self, router_id: str, workers: Iterable[Worker]) -> None:
        start_s = time.perf_counter()
        results = await asyncio.gather(*(self._tell(router_id, worker) for worker in workers))
        _log(router_id, results, (time.perf_counter() - start_s) * 1e3)

    async def _tell(self, router_id: str, worker: Worker) -> _Told:
        """Notify one worker, with retries until it has answered or refused, or all attempts are used."""
        told = _Told(worker.worker_id)
        try:
            async with asyncio.timeout(TELL_GONE_S):
                for wait_s in (0.0, *self._retry_after_s):
                    await asyncio.sleep(wait_s)
                    if await self._is_over(router_id, worker, told):
                        break
        except TimeoutError:
            pass  # ``told`` says what the last attempt met
        finally:
            self.outcomes["not_told" if told.ended is None else "told"] += 1
        return told

    async def _is_over(self, router_id: str, worker: Worker, told: _Told) -> bool:
        """One attempt. Returns False if another one may do better."""
        try:
            status, body = await self._calls.post(worker, f"/internal/routers/{router_id}/gone", TELL_GONE_S)
            if status == 200:
                told.ended = _decoder.decode(body)
                return True
        except (CallError, ValueError, RecursionError) as error:
            told.error = str(error)
            return False
        told.error = f"status {status}"
        return 400 <= status < 500  # its token differs, or its version does not know the call


def _log(router_id: str, results: Sequence[_Told], elapsed_ms: float) -> None:
    """Log one line: a warning if anything had to be ended or a worker was not reached (not after an orderly stop)."""
    ended = [told.ended for told in results if told.ended is not None]
    num_aborted, num_leases = sum(one.aborted for one in ended), sum(one.leases for one in ended)
    missed = ", ".join(f"{told.worker_id} ({told.error})" for told in results if told.ended is None)
    logger.log(
        logging.WARNING if num_aborted or num_leases or missed else logging.INFO,
        "router %s is gone: %d of %d workers told in %.1f ms, %d sequences aborted, %d leases dropped%s",
        router_id,
        len(ended),
        len(results),
        elapsed_ms,
        num_aborted,
        num_leases,
        f"; not told: {missed}" if missed else "",
    )
