"""One child process: its status lines, its log, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from baton_serve.core.process.interpreter import python, with_import_path
from baton_serve.core.process.parent_death import die_with_parent
from baton_serve.core.protocol.status import Failed, Progress, Ready, Status, decode

#: Runs this interpreter with this package, whatever is on PATH and in the current directory.
COMMAND = python("baton_serve")
#: Bytes at the end of a log that are searched for its last line.
LOG_TAIL_BYTES = 8192
#: The status pipe and the process end together, in any order. When one of them has ended, the other one is waited for
#: this long, in seconds: another process may hold the pipe open, or the child may have closed it and live on.
STATUS_TAIL_TIMEOUT_S = 1.0

#: Called with the child's name and each status. When this function raises, the child counts as ended, for that reason.
OnStatus = Callable[[str, Status], None]


@dataclass(frozen=True)
class ChildSpec:
    """What to run. ``--status-fd N`` is added to ``argv``; ``environ`` is the whole environment."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    #: Whether it drains on SIGTERM, for longer than a stop may take. A second SIGTERM makes it stop at once.
    drains: bool = False


class ChildDiedError(Exception):
    """A child ended, or gave up, without having been asked to. The message is one line with the reason."""


class PutOffError(ChildDiedError):
    """A child died before it ever served. It is started again, and others may serve without it meanwhile."""


class Supervised(Protocol):
    """What ``KeptChild`` and ``Supervisor`` need of a child; ``Child``, ``KeptChild`` and ``RedisChild`` have it."""

    @property
    def name(self) -> str: ...

    @property
    def runs(self) -> bool: ...

    async def start(self) -> None: ...

    async def ready(self) -> Ready: ...

    async def ended(self) -> str: ...

    async def stop(self, timeout_s: float) -> None: ...

    async def leave(self, timeout_s: float) -> None: ...

    def kill(self) -> None: ...

    def terminate(self) -> None: ...


class Child:
    """Runs one ``ChildSpec`` in a session of its own, so that Ctrl-C in the terminal does not reach it.

    After ``start``, ``ready`` and ``ended`` may be awaited, also several times, and cancelled; then comes ``stop`` or
    ``leave``. Without a log path the child writes to where this process writes.
    """

    def __init__(self, spec: ChildSpec, log_path: Path | None, on_status: OnStatus) -> None:
        self._spec = spec
        self._on_status = on_status
        self.log_path = log_path
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._ended: asyncio.Future[str] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Child {self.name} pid {self.pid} {'running' if self.runs else 'stopped'}>"

    @property
    def name(self) -> str:
        """The child's name in messages; its log file is named after it."""
        return self._spec.name

    @property
    def runs(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """The process id, which is also the id of its process group; None before ``start``."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process. Raises ChildDiedError when its program cannot be run."""
        loop = asyncio.get_running_loop()
        self._ready, self._ended = loop.create_future(), loop.create_future()
        read_fd, write_fd = os.pipe()
        try:
            self._process = await self._spawn(write_fd)
        except OSError as error:
            os.close(read_fd)
            raise ChildDiedError(f"{self.name}: cannot run {self._spec.argv[0]}: {error.strerror}") from error
        except asyncio.CancelledError:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._watcher = asyncio.create_task(self._watch(self._process, read_fd), name=f"watch {self.name}")

    async def ready(self) -> Ready:
        """Wait until it serves. Raises ChildDiedError when it ends instead."""
        assert self._ready is not None and self._ended is not None
        either: set[asyncio.Future[Any]] = {self._ready, self._ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        raise ChildDiedError(self._ended.result())

    async def ended(self) -> str:
        """Wait until it has ended or given up; returns one line with its name and the reason."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, and SIGKILL to its process group after ``timeout_s``. Safe to call twice, also at the same
        time.

        A child that drains gets SIGTERM a second time after half of ``timeout_s``.
        """
        if self._spec.drains:
            await self._until_ended(timeout_s / 2)
            await self._until_ended(timeout_s / 2)
        else:
            await self._until_ended(timeout_s)
        await self._clear_away()

    async def leave(self, timeout_s: float) -> None:
        """Send SIGTERM once, and SIGKILL to its process group after ``timeout_s``."""
        await self._until_ended(timeout_s)
        await self._clear_away()

    def terminate(self) -> None:
        """Send SIGTERM to the process, if it lives."""
        if self._process is not None and self._process.returncode is None:
            # Not asyncio's own ``terminate()``: that polls first, and so may take the exit status away from the loop,
            # which waits for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    async def _until_ended(self, timeout_s: float) -> None:
        if self._process is not None and self._process.returncode is None and timeout_s > 0:
            self.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), timeout_s)

    async def _clear_away(self) -> None:
        if self._process is None:
            return
        self.kill()
        await self._process.wait()
        if self._watcher is not None:
            await self._watcher

    def kill(self) -> None:
        """Send SIGKILL to its whole process group, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _spawn(self, status_fd: int) -> asyncio.subprocess.Process:
        with contextlib.nullcontext() if self.log_path is None else self.log_path.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._spec.argv,
                "--status-fd",
                str(status_fd),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=with_import_path(self._spec.environ),
                pass_fds=(status_fd,),
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    async def _watch(self, process: asyncio.subprocess.Process, read_fd: int) -> None:
        status = asyncio.create_task(self._read_status(read_fd), name=f"status {self.name}")
        status.add_done_callback(self._note_broken_status)
        exit_code = asyncio.create_task(process.wait(), name=f"end of {self.name}")
        await asyncio.wait({status, exit_code}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({status, exit_code}, timeout=STATUS_TAIL_TIMEOUT_S)
        if not exit_code.done() and self._ready is not None and not self._ready.done():
            self._end("stopped saying how far it is before it was ready")
        code = await exit_code
        if status.cancel():
            await asyncio.wait({status})
        # The end of the log is a reason only if the process has ended by itself, and in vain.
        because = _because(last_line(self.log_path)) if code > 0 and self.log_path is not None else ""
        self._end(f"{exit_text(code)}{because}")

    def _note_broken_status(self, status: asyncio.Task[None]) -> None:
        """Reading the status lines has failed: end the service of the child, with the error as reason."""
        if not status.cancelled() and (error := status.exception()) is not None:
            self._end(f"what it said could not be handled: {error!r}")

    async def _read_status(self, read_fd: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", buffering=0)
        )
        try:
            async for line in reader:
                self._take(line)
        except ValueError:  # what StreamReader raises for a line over its limit
            self._end("wrote an endless status line")
        finally:
            transport.close()

    def _take(self, line: bytes) -> None:
        try:
            status = decode(line)
        except msgspec.DecodeError:
            self._end(f"wrote a status line that is none: {line[:80]!r}")
            return
        match status:
            case Progress():
                self._on_status(self.name, status)
            case Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(status)
                    self._on_status(self.name, status)
            case Failed(error):
                self._end(error)

    def _end(self, reason: str) -> None:
        """Note why the child has ended, unless a reason is noted already."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(f"{self.name}: {reason}")


def last_line(path: Path) -> str:
    """The last line of a log that is not empty; empty if there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")


def _because(line: str) -> str:
    return f": {line}" if line else ""


def exit_text(code: int) -> str:
    """How a process has ended, from its return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
