"""Whether a worker is alive that has sent nothing for minutes because it computes an unstreamed answer.

Its announcements are a sign of life, but routers see them only when their content changes, and while the registry is
reachable. Any answer of its HTTP server is also a sign of life, even that it drains.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.net.client.http_client import HttpClient

if TYPE_CHECKING:
    from baton_serve.router.pool import Worker

#: How often a worker is checked, and asked, within the silence after which it is given up.
LOOKS = 6
#: Most seconds to wait for one answer.
ASK_TIMEOUT_S = 2.0


class Liveness:
    """Asks each worker at most one question at a time, however many requests wait for that worker."""

    def __init__(self, upstream: HttpClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstream = upstream
        self._clock = clock
        self._asked: set[Worker] = set()

    def __repr__(self) -> str:
        return f"<Liveness asking {len(self._asked)} workers>"

    async def until_silent(self, worker: Worker, silence_s: float) -> None:
        """Return once the worker has shown no sign of life for ``silence_s`` seconds, counted from now on."""
        began_s = self._clock()
        look_s = silence_s / LOOKS
        while True:
            heard_s = max(worker.usage.heard_s, worker.standing.answered_s)
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
        worker.standing.answered_s = self._clock()
