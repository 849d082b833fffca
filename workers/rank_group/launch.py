"""Starts a rank process with one end of a socket pair. No torch here."""

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

#: Variables with the folders of the hub's models and token. Relative paths are made absolute, because a rank has
#: another current directory.
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "XDG_CACHE_HOME")


async def launch(
    spec: RankSpec, environ: Mapping[str, str]
) -> tuple[Process, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Start a rank; returns the process and this end of its connection. ``environ`` is added to ``os.environ``."""
    ours, theirs = socket.socketpair()
    with theirs:
        streams = await _connect(ours)
        arguments = [str(theirs.fileno()), str(os.getpid()), msgspec.json.encode(_anywhere(spec)).decode()]
        try:
            # This is the last await, so that no cancellation can come once the process exists.
            process = await asyncio.create_subprocess_exec(
                *python("workers.rank.main"),
                *arguments,
                # UCX would read a ``ucx.conf`` in the current directory, which can name libraries to load.
                cwd=os.sep,
                stdin=asyncio.subprocess.DEVNULL,
                # Libraries print to standard output, and a program may read the worker's standard output.
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C goes to the whole process group, and may come while Python is still starting in the rank.
                preexec_fn=_ignore_interrupts,
                env=with_import_path(_absolute_caches({**os.environ, **environ})),
            )
        except BaseException:
            streams[1].close()
            raise
    return process, streams


def _anywhere(spec: RankSpec) -> RankSpec:
    """``spec`` with the absolute path of a local model."""
    folder = Path(spec.model).expanduser()
    return msgspec.structs.replace(spec, model=str(folder.absolute())) if folder.exists() else spec


def _absolute_caches(environ: Mapping[str, str]) -> dict[str, str]:
    caches = {key: str(Path(environ[key]).expanduser().absolute()) for key in _CACHES if environ.get(key)}
    return {**environ, **caches}


def _ignore_interrupts() -> None:
    """Ignore SIGINT. An ignored signal stays ignored in the program that is executed next."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _connect(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(sock=sock)
    except BaseException:
        sock.close()
        raise


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, even if the caller is cancelled meanwhile; then raise that CancelledError."""
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
