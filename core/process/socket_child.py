"""Starts a process that loads libraries which are not Python's own, and that is talked to over a socket pair."""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping

from baton_serve.core.process.interpreter import python, with_import_path

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def start_with_socket(
    module: str,
    *arguments: str,
    environ: Mapping[str, str],
    before_exec: Callable[[], None],
    new_session: bool = False,
) -> tuple[Process, Streams]:
    """Run ``module FD PARENT_PID ARGUMENTS``, where FD is its end of the socket pair. Raises OSError.

    Returns the process and this end. After a cancellation there is neither.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        streams = await _streams(ours)
        try:
            # This is the last await, so that no cancellation can come once the process exists.
            process = await asyncio.create_subprocess_exec(
                *python(module),
                str(theirs.fileno()),
                str(os.getpid()),
                *arguments,
                # UCX would read a ``ucx.conf`` in the current directory, which can name libraries to load.
                cwd=os.sep,
                stdin=asyncio.subprocess.DEVNULL,
                # Libraries print to standard output, and a program may read this process's standard output.
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=new_session,
                preexec_fn=before_exec,
                env=with_import_path(environ),
            )
        except BaseException:
            streams[1].close()
            raise
    return process, streams


async def _streams(sock: socket.socket) -> Streams:
    try:
        return await asyncio.open_unix_connection(sock=sock)
    except BaseException:
        sock.close()
        raise
