"""Start a rank process with one end of a socket pair, and clean up whatever happens. No torch here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.process.interpreter import python, with_import_path

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Coroutine, Mapping

    from workers.rank_protocol.spec import RankSpec

#: Where models from the hub and the token for it are kept: may be relative to our current directory, which is not the
#: rank's.
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "XDG_CACHE_HOME")


async def launch(
    spec: RankSpec, environ: Mapping[str, str]
) -> tuple[Process, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The process and our end of its connection. ``environ`` is added to our own."""
    ours, theirs = socket.socketpair()
    with theirs:
        streams = await _connect(ours)
        arguments = [str(theirs.fileno()), str(os.getpid()), msgspec.json.encode(_anywhere(spec)).decode()]
        try:
            # Last: there is nothing to await, and so nothing to be cancelled in, once there is a process.
            process = await asyncio.create_subprocess_exec(
                *python("workers.rank.main"),
                *arguments,
                # UCX would read a ``ucx.conf`` in the current directory, which may name libraries to load.
                cwd=os.sep,
                stdin=asyncio.subprocess.DEVNULL,
                # Libraries print; our own standard output may be read by somebody.
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C reaches the whole process group, also while Python is still starting there.
                preexec_fn=_ignore_interrupts,
                env=with_import_path(_absolute_caches({**os.environ, **environ})),
            )
        except BaseException:
            streams[1].close()
            raise
    return process, streams


def _anywhere(spec: RankSpec) -> RankSpec:
    """The same model, whatever the current directory is."""
    folder = Path(spec.model).expanduser()
    return msgspec.structs.replace(spec, model=str(folder.absolute())) if folder.exists() else spec


def _absolute_caches(environ: Mapping[str, str]) -> dict[str, str]:
    caches = {key: str(Path(environ[key]).expanduser().absolute()) for key in _CACHES if environ.get(key)}
    return {**environ, **caches}


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
