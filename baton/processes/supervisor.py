"""Runs a set of children until one dies or a signal comes, then stops them in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from baton_serve.baton.processes.child import ChildDiedError, PutOffError, Supervised
from baton_serve.core.process.signals import STOP_SIGNALS, on_signals
from baton_serve.core.protocol.status import Ready

T = TypeVar("T")
C = TypeVar("C", bound=Supervised)

#: Called with the names of the children that a stop waits for.
OnWait = Callable[[list[str]], None]
#: Seconds after which a stop first reports what it waits for, and seconds between two such lines.
FIRST_WAIT_S, WAIT_S = 1.0, 5.0

SIGNALS = (*STOP_SIGNALS, signal.SIGHUP)


class StopRequests:
    """Counts the signals that ask this process to stop: the first asks for an orderly stop, the second for one without
    waiting.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def request(self) -> None:
        """Count one signal."""
        (self.second if self.first.is_set() else self.first).set()

    @asynccontextmanager
    async def from_signals(self) -> AsyncIterator[None]:
        """Handle the process's signals while inside."""
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
    """Starts all children together and stops them in order: one of ``stages`` after the other, first to last, and the
    children of one stage together.

    ``hurry`` is called with every child when a second stop is requested.
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
        """The children of all stages."""
        return [child for stage in self._stages for child in stage]

    def stage(self, index: int) -> list[C]:
        """The children of one stage, the oldest first."""
        return list(self._stages[index])

    async def add(self, index: int, child: C, timeout_s: float) -> Ready:
        """Start one more child and wait until it serves. From then on its end makes ``wait`` return, as with the other
        children.

        Raises ChildDiedError when it does not come to serve. Then, and after a cancellation, nothing is left of it.
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
        """Stop one child, with time to finish its requests.

        When this is cancelled, ``stop`` still stops the child.
        """
        await child.leave(timeout_s)
        self._stages[index].remove(child)

    async def _remove(self, index: int, child: C) -> None:
        await child.stop(0)
        self._stages[index].remove(child)

    async def start(self) -> dict[str, Ready]:
        """Start all children at once, and wait until each serves or is put off; returns those that serve, by name.

        Raises ChildDiedError for the first child that is given up, StoppedError when a stop was requested.
        """
        await self.unless_over(self._start_all())
        return await self.unless_over(self._all_ready())

    async def wait(self) -> None:
        """Wait until a stop is requested. Raises ChildDiedError when a child is given up before."""
        try:
            await self.unless_over(asyncio.get_running_loop().create_future())
        except StoppedError:
            return

    async def stop(self, timeout_s: float, on_wait: OnWait = lambda _: None) -> None:
        """Stop every child, stage by stage. A second stop request calls ``hurry`` for the children that still run.

        ``on_wait`` is called now and then with the names of the children that still run. If stopping a child raises an
        error, all others are stopped nevertheless, and then the first such error is raised.
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
        """Await ``work``. It is cancelled, and StoppedError or ChildDiedError raised, when a stop is requested or a
        child is given up before.
        """
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
        """Note why it is over, unless a reason is noted already."""
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
