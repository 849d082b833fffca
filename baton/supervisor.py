"""Runs a set of children until one dies or a signal comes, then stops them in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from baton.child import Child, ChildDiedError
from protocol.status import Ready

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.request)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


class StoppedError(Exception):
    """A stop was requested while something was still under way."""


class Supervisor:
    """``stages`` are stopped one after the other, first to last; the children of one stage together.

    ``watched`` are ends of things that are not children (an embedded Redis): awaitables of a reason.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[Child]],
        stops: StopRequests,
        watched: Sequence[Awaitable[str]] = (),
    ) -> None:
        self._stages = stages
        self._stops = stops
        self._watched = [asyncio.ensure_future(end) for end in watched]
        self._ends: list[asyncio.Future[str]] = []

    @property
    def children(self) -> list[Child]:
        """All of them."""
        return [child for stage in self._stages for child in stage]

    async def start(self, timeout_s: float) -> dict[str, Ready]:
        """Start all at once and wait until every one serves.

        Raises ChildDiedError for the first that fails or is late, StoppedError when a stop was requested.
        """
        await self.unless_over(self._start_all())
        try:
            async with asyncio.timeout(timeout_s):
                return await self.unless_over(self._all_ready())
        except TimeoutError:
            raise ChildDiedError(f"not everything was ready after {timeout_s:g} s") from None

    async def wait(self) -> None:
        """Return when a stop is requested. Raises ChildDiedError when something ends by itself before."""
        try:
            await self.unless_over(asyncio.get_running_loop().create_future())
        except StoppedError:
            return

    async def stop(self, timeout_s: float) -> None:
        """Stop everything in order; a second stop request kills what is left at once.

        Whatever goes wrong with one child, all others are stopped too; then the first such error is raised.
        """
        hurry = asyncio.create_task(self._kill_on_second_request())
        errors: list[BaseException] = []
        try:
            for stage in self._stages:
                ends = await asyncio.gather(*(child.stop(timeout_s) for child in stage), return_exceptions=True)
                errors += [end for end in ends if end is not None]
        finally:
            leftover: list[asyncio.Future[Any]] = [hurry, *self._watched, *self._ends]
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
            await asyncio.wait({task, stop, *self._watched, *self._ends}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                raise StoppedError
            if dead := [end.result() for end in (*self._ends, *self._watched) if end.done()]:
                raise ChildDiedError(dead[0])
            return task.result()
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _start_all(self) -> None:
        for child in self.children:
            await child.start()
            self._ends.append(asyncio.ensure_future(child.ended()))

    async def _all_ready(self) -> dict[str, Ready]:
        answers = await asyncio.gather(*(child.ready() for child in self.children))
        return dict(zip((child.name for child in self.children), answers, strict=True))

    async def _kill_on_second_request(self) -> None:
        await self._stops.second.wait()
        for child in self.children:
            child.kill()


async def process_end(pid: int, name: str) -> str:
    """Wait until a process that somebody else reaps has ended; says so in one line."""
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return f"{name}: has ended"
