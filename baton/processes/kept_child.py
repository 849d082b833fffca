"""A child that is started again when it dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton_serve.baton.processes.child import Child, ChildDiedError, ChildSpec, OnStatus, PutOffError, Supervised
from baton_serve.baton.processes.crew import Crew
from baton_serve.baton.processes.display import as_whom
from baton_serve.baton.processes.restarts import Restarts
from baton_serve.core.protocol.status import Failed, Ready

#: Seconds that a child gets to end after it has reported that it gives up.
LAST_WORDS_S = 5.0


@dataclass(frozen=True)
class Keeping:
    """How children are kept. All children of a parent may share it."""

    #: Called with every status of a child that has not served yet.
    on_status: OnStatus
    #: Called with a line for a person when a child dies or serves again.
    on_news: Callable[[str], None]
    #: How long a start may take, seconds.
    start_timeout_s: float
    #: Where logs go; None: to where this process's own output goes.
    log_dir: Path | None = None
    #: Returns what is run at later starts, from what was run first and what the child reported when it was first ready.
    next_spec: Callable[[ChildSpec, Ready], ChildSpec] = lambda spec, _: spec
    #: Called with a child's name, and whether it is missing now: it does not serve although it should.
    on_missing: Callable[[str, bool], None] = lambda *_: None
    #: Makes the ``Restarts`` of one child, which knows how long to wait before a start.
    make_restarts: Callable[[], Restarts] = Restarts
    #: Makes the child of one start, from its spec, the path of its log, and the function to call with its statuses.
    make_child: Callable[[ChildSpec, Path | None, OnStatus], Supervised] = Child
    #: Returns what is added to the news that a child serves again.
    as_whom: Callable[[Ready], str] = as_whom


class KeptChild:
    """A ``Child`` that is started again whenever it dies, until there is little hope for its whole crew.

    After ``start``, ``ready`` may be awaited for the first start, and ``ended`` until the child is given up. Then comes
    ``stop`` or ``leave``.
    """

    def __init__(self, spec: ChildSpec, keeping: Keeping, crew: Crew | None = None) -> None:
        self._spec = spec
        self._keeping = keeping
        self._restarts = keeping.make_restarts()
        self._crew = Crew() if crew is None else crew
        self._crew.note(spec.name, is_hopeless=False)
        self._child = self._make_child()
        #: The result of the first start; None: the child was put off.
        self._first: asyncio.Future[Ready | None] | None = None
        self._keeper: asyncio.Task[str] | None = None
        self._trouble = ""

    def __repr__(self) -> str:
        return f"<KeptChild {self._child!r}>"

    @property
    def name(self) -> str:
        """The child's name in messages; its log file is named after it."""
        return self._spec.name

    @property
    def spec(self) -> ChildSpec:
        """The spec of what is run."""
        return self._spec

    @property
    def trouble(self) -> str:
        """Why the child does not serve, in one line; empty while it serves and while it starts for the first time."""
        return self._trouble

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        return self._child.runs

    @property
    def crew(self) -> Crew:
        """The children that can stand in for each other, this one included."""
        return self._crew

    def join(self, crew: Crew) -> None:
        """Become a member of another crew."""
        self._crew = crew
        crew.note(self.name, self._restarts.is_hopeless)

    async def start(self) -> None:
        """Start the process. Raises ChildDiedError when its program cannot be run."""
        self._first = asyncio.get_running_loop().create_future()
        await self._child.start()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    async def ready(self) -> Ready:
        """Wait until it serves for the first time. Raises PutOffError when it ends instead and is started again,
        ChildDiedError when it is given up.
        """
        assert self._first is not None and self._keeper is not None
        either: set[asyncio.Future[Any]] = {self._first, self._keeper}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._first.done():
            raise ChildDiedError(self._keeper.result())
        ready = self._first.result()
        if ready is None:
            raise PutOffError(self._trouble)
        return ready

    async def ended(self) -> str:
        """Wait until it is given up; returns one line with its name and the reason."""
        assert self._keeper is not None
        return await asyncio.shield(self._keeper)

    async def stop(self, timeout_s: float) -> None:
        """Do as ``Child.stop``; the child is not started again. Safe to call twice."""
        await self._let_go()
        await self._child.stop(timeout_s)

    async def leave(self, timeout_s: float) -> None:
        """Do as ``Child.leave``; the child is not started again."""
        await self._let_go()
        await self._child.leave(timeout_s)

    def keep_no_more(self) -> None:
        """Do not start it again when it ends, and do not report its end. Cancels ``ended``."""
        if self._keeper is not None:
            self._keeper.cancel()

    def kill(self) -> None:
        """Send SIGKILL to its whole process group, at once."""
        self._child.kill()

    def terminate(self) -> None:
        """Send SIGTERM to the process, if it lives."""
        self._child.terminate()

    async def _let_go(self) -> None:
        self._crew.leave(self.name)
        self._note_trouble("")
        self.keep_no_more()
        if self._keeper is not None:
            await asyncio.wait({self._keeper})

    async def _keep(self) -> str:
        """Start it again whenever it dies; returns the reason why it is given up."""
        reason = await self._until_dead()
        while True:
            self._note_trouble(reason)
            await self._child.stop(LAST_WORDS_S)
            pause_s = self._restarts.died(time.monotonic())
            self._crew.note(self.name, self._restarts.is_hopeless)
            if self._crew.is_lost:
                return reason
            self._tell_trouble(f"{reason}; starting it again in {pause_s:.1f} s")
            await asyncio.sleep(pause_s)
            reason = await self._start_again()

    async def _start_again(self) -> str:
        """Start a new process, and wait for its end; returns the reason."""
        self._child = self._make_child()
        try:
            await self._child.start()
        except ChildDiedError as error:
            return str(error)
        return await self._until_dead()

    async def _until_dead(self) -> str:
        """Wait for the end of a process that was just started; returns the reason."""
        try:
            async with asyncio.timeout(self._keeping.start_timeout_s):
                ready = await self._child.ready()
        except ChildDiedError as error:
            return str(error)
        except TimeoutError:
            return f"{self.name}: was not ready after {self._keeping.start_timeout_s:g} s"
        self._serves(ready)
        return await self._child.ended()

    def _serves(self, ready: Ready) -> None:
        assert self._first is not None
        if not self._restarts.has_served:
            self._spec = self._keeping.next_spec(self._spec, ready)
        if self._first.done():
            again = " again" if self._restarts.has_served else " now"
            self._keeping.on_news(f"{self.name}: serves{again}{self._keeping.as_whom(ready)}")
        self._restarts.serves(time.monotonic())
        self._crew.note(self.name, is_hopeless=False)
        self._note_trouble("")
        if not self._first.done():
            self._first.set_result(ready)

    def _note_trouble(self, trouble: str) -> None:
        self._trouble = trouble
        self._keeping.on_missing(self.name, bool(trouble))

    def _tell_trouble(self, line: str) -> None:
        assert self._first is not None
        if self._first.done():
            self._keeping.on_news(line)
        else:
            self._keeping.on_status(self.name, Failed(line.removeprefix(f"{self.name}: ")))
            self._first.set_result(None)

    def _make_child(self) -> Supervised:
        log_dir = self._keeping.log_dir
        log_path = None if log_dir is None else log_dir / f"{self.name}.log"
        return self._keeping.make_child(self._spec, log_path, self._tell)

    def _tell(self, name: str, status: Any) -> None:
        if self._first is not None and not self._first.done():
            self._keeping.on_status(name, status)
