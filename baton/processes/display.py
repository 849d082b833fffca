"""What a person sees while ``baton up`` loads: one moving line per process on a terminal, else plain lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol, TextIO

from baton_serve.baton.processes.output import say
from baton_serve.core.protocol.ids import short
from baton_serve.core.protocol.status import Failed, Progress, Ready, Status

#: Seconds without a line, while something loads, after which there is a reminder.
REMIND_S = 5.0


class Display(Protocol):
    """Shows every status of every process."""

    def show(self, name: str, status: Status) -> None:
        """Show the status that a process reported."""

    def remind(self) -> None:
        """Show that loading continues although no process has reported anything for a while."""

    def close(self) -> None:
        """End the display: what is printed from now on stands below it. Safe to call twice."""


class LineDisplay:
    """A line per status, for logs and pipes."""

    def __init__(self, stream: TextIO, names: Iterable[str] = ()) -> None:
        self._stream = stream
        #: The last status of each process that is not ready, by name.
        self._loading = dict.fromkeys(names, "starting")

    def show(self, name: str, status: Status) -> None:
        text = status_text(status)
        if isinstance(status, Progress):
            self._loading[name] = text
        else:
            self._loading.pop(name, None)
        say(f"{name:<10} {text}", self._stream)

    def remind(self) -> None:
        if self._loading:
            waited_for = ", ".join(f"{name} ({text})" for name, text in self._loading.items())
            say(f"waiting for {waited_for}", self._stream)

    def close(self) -> None:
        """Nothing to undo."""


class LiveDisplay:
    """A line per process that changes in place."""

    def __init__(self, names: list[str]) -> None:
        from rich.progress import Progress as Bars
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        self._bars = Bars(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.fields[who]:<10}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._tasks = {name: self._bars.add_task("starting", total=1, who=name) for name in names}
        self._bars.start()

    def show(self, name: str, status: Status) -> None:
        self._bars.update(self._tasks[name], description=status_text(status), completed=int(isinstance(status, Ready)))

    def remind(self) -> None:
        """Let the clocks in the lines move."""

    def close(self) -> None:
        self._bars.stop()


def make_display(names: list[str]) -> Display:
    """The display that suits standard output."""
    return LiveDisplay(names) if sys.stdout.isatty() else LineDisplay(sys.stdout, names)


@asynccontextmanager
async def reminders(display: Display) -> AsyncIterator[None]:
    """Call ``remind`` every ``REMIND_S`` seconds while inside."""
    task = asyncio.create_task(_remind(display), name="reminders")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _remind(display: Display) -> None:
    while True:
        await asyncio.sleep(REMIND_S)
        display.remind()


def status_text(status: Status) -> str:
    """A status in a few words."""
    match status:
        case Progress(text):
            return text
        case Ready(url):
            return f"ready on {url}{as_whom(status)}" if url else "ready"
        case Failed(error):
            return f"failed: {error}"


def as_whom(ready: Ready) -> str:
    """The beginning of a worker's id, under which ``baton drain`` and the lists of workers have the worker."""
    return f" as {short(ready.worker_id)}" if ready.worker_id else ""
