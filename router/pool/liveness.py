"""Whether a worker lives that is silent about a request for minutes, because it computes an unstreamed answer.

Its announcements are a sign of life, but routers see them only when something in them changes, and while the registry
is there. Any answer of its HTTP server is another sign, also that it drains.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from core.net.client.errors import CallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.pool import Worker
    from router.upstream.port import Upstream

#: How often a worker is looked at, and asked, within the silence after which it is given up.
LOOKS = 6
#: Longest wait for one answer, seconds.
ASK_TIMEOUT_S = 2.0


class Liveness:
    """Has at most one question to each worker under way, however many requests wait for it."""

    def __init__(self, upstream: Upstream, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstream = upstream
        self._clock = clock
        self._asked: set[Worker] = set()

    def __repr__(self) -> str:
        return f"<Liveness asking {len(self._asked)} workers>"

    async def until_silent(self, worker: Worker, silence_s: float) -> None:
        """Return once the worker has shown no sign of life for so long, counted from now on."""
        began_s = self._clock()
        look_s = silence_s / LOOKS
        while True:
            heard_s = max(worker.heard_s, worker.answered_s)
            if self._clock() - max(began_s, heard_s) >= silence_s:
                return
            if self._clock() - heard_s >= look_s and worker not in self._asked:
                await self._ask(worker, min(ASK_TIMEOUT_S, look_s))
            await asyncio.sleep(look_s)

    async def _ask(self, worker: Worker, timeout_s: float) -> None:
        self._asked.add(worker)
        try:
            answer = await self._upstream.request("GET", worker.url, "/health", (), b"", timeout_s)
        except CallError:
            return
        finally:
            self._asked.remove(worker)
        answer.close()
        worker.answered_s = self._clock()
