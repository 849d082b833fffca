"""Runs a set of children until one dies or a signal comes, then stops them in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from baton.processes.child import ChildDiedError, PutOffError, Supervised
from core.process.signals import STOP_SIGNALS, on_signals
from core.protocol.status import Ready

T = TypeVar("T")
C = TypeVar("C", bound=Supervised)

#: Told the names of those that are waited for.
OnWait = Callable[[list[str]], None]
#: How long a stop may take before it says what it waits for, and how often it does.
FIRST_WAIT_S, WAIT_S = 1.0, 5.0

SIGNALS = (*STOP_SIGNALS, signal.SIGHUP)


class StopRequests:
    """Ctrl-C and its relatives: the first one asks to stop, the second one not to wait."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def request(self) -> None:
        """Called once per signal."""
        (self.second if self.first.is_set() else self.first).set()

    @asynccontextmanager
    async def from_signals(self) -> AsyncIterator[None]:
        """Take the process's signals while inside."""
        with on_signals(lambda _: self.request(), SIGNALS):
            yield


class StoppedError(Exception):
    """A stop was requested while something was still under way."""


def _kill(child: Supervised) -> None:
    child.kill()


async def _ready_or_put_off(child: Supervised) -> Ready | None:
    try:
        return await child.ready()
    except PutOffError:
        return None


class Supervisor(Generic[C]):
    """``stages`` are stopped one after the other, first to last; the children of one stage together.

    ``hurry`` is done to every child when a second stop is requested.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[C]],
        stops: StopRequests,
        hurry: Callable[[Supervised], None] = _kill,
    ) -> None:
        self._stages = [list(stage) for stage in stages]
        self._stops = stops
        self._hurry = hurry
        self._ends: set[asyncio.Future[str]] = set()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def children(self) -> list[C]:
        """All of them."""
        return [child for stage in self._stages for child in stage]

    def stage(self, index: int) -> list[C]:
        """The children of one stage, the oldest first."""
        return list(self._stages[index])

    async def add(self, index: int, child: C, timeout_s: float) -> Ready:
        """Start one more child and wait until it serves; from then on its end is everybody's.

        Raises ChildDiedError when it does not get that far; nothing is left of it then, nor after a cancellation.
        """
        self._stages[index].append(child)
        try:
            await child.start()
            async with asyncio.timeout(timeout_s):
                ready = await child.ready()
        except TimeoutError:
            await self._remove(index, child)
            raise ChildDiedError(f"{child.name}: was not ready after {timeout_s:g} s") from None
        except BaseException:
            await self._remove(index, child)
            raise
        self._watch(child.ended())
        return ready

    async def dismiss(self, index: int, child: C, timeout_s: float) -> None:
        """Let a child finish what it has. It is still stopped with the others when that is cancelled."""
        await child.leave(timeout_s)
        self._stages[index].remove(child)

    async def _remove(self, index: int, child: C) -> None:
        await child.stop(0)
        self._stages[index].remove(child)

    async def start(self) -> dict[str, Ready]:
        """Start all at once and wait until every one serves or is put off: those that serve, by name.

        Raises ChildDiedError for the first that is given up, StoppedError when a stop was requested.
        """
        await self.unless_over(self._start_all())
        return await self.unless_over(self._all_ready())

    async def wait(self) -> None:
        """Return when a stop is requested. Raises ChildDiedError when something ends by itself before."""
        try:
            await self.unless_over(asyncio.get_running_loop().create_future())
        except StoppedError:
            return

    async def stop(self, timeout_s: float, on_wait: OnWait = lambda _: None) -> None:
        """Stop everything in order; a second stop request hurries what is left. When it takes long ``on_wait`` is told
        who still runs.

        Whatever goes wrong with one child, all others are stopped too; then the first such error is raised.
        """
        hurry = asyncio.create_task(self._hurry_on_second_request())
        waiting = asyncio.create_task(self._tell_who_runs(on_wait))
        errors: list[BaseException] = []
        try:
            for stage in self._stages:
                ends = await asyncio.gather(*(child.stop(timeout_s) for child in stage), return_exceptions=True)
                errors += [end for end in ends if end is not None]
        finally:
            leftover: list[asyncio.Future[Any]] = [hurry, waiting, *self._ends]
            for future in leftover:
                future.cancel()
            await asyncio.gather(*leftover, return_exceptions=True)
        if errors:
            raise errors[0]

    async def unless_over(self, work: Awaitable[T]) -> T:
        """Await ``work``, but raise StoppedError or ChildDiedError (and cancel it) as soon as there is reason to."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stops.first.wait())
        try:
            await asyncio.wait({task, stop, self._over}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                raise StoppedError
            if self._over.done():
                raise ChildDiedError(self._over.result())
            return task.result()
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _watch(self, end: Awaitable[str]) -> None:
        future = asyncio.ensure_future(end)
        self._ends.add(future)
        future.add_done_callback(self._note_end)

    def _note_end(self, end: asyncio.Future[str]) -> None:
        """The first one counts."""
        self._ends.discard(end)
        if not end.cancelled() and not self._over.done():
            error = end.exception()
            self._over.set_result(end.result() if error is None else f"could not be watched: {error!r}")

    async def _start_all(self) -> None:
        for child in self.children:
            await child.start()
            self._watch(child.ended())

    async def _all_ready(self) -> dict[str, Ready]:
        children = self.children
        answers = await asyncio.gather(*map(_ready_or_put_off, children))
        return {child.name: ready for child, ready in zip(children, answers, strict=True) if ready is not None}

    async def _tell_who_runs(self, on_wait: OnWait) -> None:
        pause_s = FIRST_WAIT_S
        while True:
            await asyncio.sleep(pause_s)
            on_wait([child.name for child in self.children if child.runs])
            pause_s = WAIT_S

    async def _hurry_on_second_request(self) -> None:
        await self._stops.second.wait()
        for child in self.children:
            self._hurry(child)
