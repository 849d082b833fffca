"""A child that is started again when it dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.child import Child, ChildDiedError, ChildSpec, OnStatus
from baton.display import as_whom
from baton.restarts import Restarts
from protocol.status import Ready

#: A child that has given up, but not ended yet, gets this long to do so.
LAST_WORDS_S = 5.0


@dataclass(frozen=True)
class Keeping:
    """How children are kept: what all of one parent have in common."""

    #: Told every status of a child that has not served yet.
    on_status: OnStatus
    #: Told a line for a person when a child dies or serves again.
    on_news: Callable[[str], None]
    #: How long a start may take.
    start_timeout_s: float
    #: Where logs go; None: to where this process's own output goes.
    log_dir: Path | None = None
    #: What is run the next time, by what was run and what it answered.
    next_spec: Callable[[ChildSpec, Ready], ChildSpec] = lambda spec, _: spec


class KeptChild:
    """As a ``Child``, but ``ended`` means given up: it died before it ever served, or does not come back.

    ``start``, then ``ready`` (the first time) and ``ended`` may be awaited, then ``stop`` or ``leave``.
    """

    def __init__(self, spec: ChildSpec, keeping: Keeping) -> None:
        self._spec = spec
        self._keeping = keeping
        self._restarts = Restarts()
        self._child = self._make_child()
        self._ready: asyncio.Future[Ready] | None = None
        self._keeper: asyncio.Task[str] | None = None

    def __repr__(self) -> str:
        return f"<KeptChild {self._child!r}>"

    @property
    def name(self) -> str:
        """Name in messages and of the log file."""
        return self._spec.name

    @property
    def spec(self) -> ChildSpec:
        """What is run."""
        return self._spec

    async def start(self) -> None:
        """Start the process. Raises ChildDiedError when there is nothing to run."""
        self._ready = asyncio.get_running_loop().create_future()
        await self._child.start()
        self._keeper = asyncio.create_task(self._keep(self._ready), name=f"keep {self.name}")

    async def ready(self) -> Ready:
        """Wait until it serves for the first time. Raises ChildDiedError when it ends instead."""
        assert self._ready is not None and self._keeper is not None
        either: set[asyncio.Future[Any]] = {self._ready, self._keeper}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        raise ChildDiedError(self._keeper.result())

    async def ended(self) -> str:
        """Wait until it is given up; one line that says who and why."""
        assert self._keeper is not None
        return await asyncio.shield(self._keeper)

    async def stop(self, timeout_s: float) -> None:
        """As ``Child.stop``; it is not started again. Safe to call twice."""
        await self._let_go()
        await self._child.stop(timeout_s)

    async def leave(self, timeout_s: float) -> None:
        """As ``Child.leave``; it is not started again."""
        await self._let_go()
        await self._child.leave(timeout_s)

    def keep_no_more(self) -> None:
        """From now on its end is nothing to speak of, and it is not started again; ``ended`` is cancelled."""
        if self._keeper is not None:
            self._keeper.cancel()

    def kill(self) -> None:
        """SIGKILL to its whole process group, at once."""
        self._child.kill()

    def terminate(self) -> None:
        """SIGTERM, once more."""
        self._child.terminate()

    async def _let_go(self) -> None:
        self.keep_no_more()
        if self._keeper is not None:
            await asyncio.wait({self._keeper})

    async def _keep(self, first_ready: asyncio.Future[Ready]) -> str:
        """Returns the reason why it is given up."""
        while True:
            reason = await self._until_dead(first_ready)
            await self._child.stop(LAST_WORDS_S)
            pause_s = self._restarts.died(time.monotonic())
            if pause_s is None:
                return reason
            self._keeping.on_news(f"{reason}; starting it again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            self._child = self._make_child()

    async def _until_dead(self, first_ready: asyncio.Future[Ready]) -> str:
        """One life: from its start, which only the first one has behind it, to its end."""
        try:
            if first_ready.done():
                await self._child.start()
            async with asyncio.timeout(self._keeping.start_timeout_s):
                ready = await self._child.ready()
        except ChildDiedError as error:
            return str(error)
        except TimeoutError:
            return f"{self.name}: was not ready after {self._keeping.start_timeout_s:g} s"
        self._restarts.serves(time.monotonic())
        if first_ready.done():
            self._keeping.on_news(f"{self.name}: serves again{as_whom(ready)}")
        else:
            self._spec = self._keeping.next_spec(self._spec, ready)
            first_ready.set_result(ready)
        return await self._child.ended()

    def _make_child(self) -> Child:
        log_dir = self._keeping.log_dir
        log_path = None if log_dir is None else log_dir / f"{self.name}.log"
        return Child(self._spec, log_path, self._tell)

    def _tell(self, name: str, status: Any) -> None:
        if not self._restarts.has_served:
            self._keeping.on_status(name, status)
