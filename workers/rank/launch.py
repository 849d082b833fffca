"""Start a rank process with one end of a socket pair, and clean up whatever happens. No torch here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Coroutine, Mapping

    from workers.rank.spec import RankSpec

_ROOT = str(Path(__file__).parents[2])


async def launch(
    spec: RankSpec, environ: Mapping[str, str]
) -> tuple[Process, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The process and our end of its connection. ``environ`` is added to our own."""
    # Found again however we were: from a checkout, an archive or an installed package.
    path = os.pathsep.join(filter(None, [_ROOT, environ.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
    ours, theirs = socket.socketpair()
    with theirs:
        streams = await _connect(ours)
        arguments = [str(theirs.fileno()), str(os.getpid()), msgspec.json.encode(spec).decode()]
        try:
            # Last: there is nothing to await, and so nothing to be cancelled in, once there is a process.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "workers.rank.main", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                # Libraries print; our own standard output may be read by somebody.
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C reaches the whole process group, also while Python is still starting there.
                preexec_fn=_ignore_interrupts,
                env={**os.environ, **environ, "PYTHONPATH": path},
            )
        except BaseException:
            streams[1].close()
            raise
    return process, streams


def _ignore_interrupts() -> None:
    """What is ignored stays so when another program is executed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _connect(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(sock=sock)
    except BaseException:
        sock.close()
        raise


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, however often we are cancelled meanwhile; then be cancelled."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
