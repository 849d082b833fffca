"""The Unix socket on which a running ``baton up`` takes commands: one per public port, in a private folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from baton_serve.baton.processes.embedded_redis import MAX_SOCKET_PATH_BYTES
from baton_serve.baton.processes.private_folder import make_private, remove
from baton_serve.core.protocol.scale import MAX_LINE_BYTES, Answer, NotScaled, Scale, decode_command, encode

#: Longest wait for a command after a connection has come, seconds.
COMMAND_TIMEOUT_S = 5.0

Tell = Callable[[Answer], None]
Handle = Callable[[Scale, Tell], Awaitable[Answer]]


class ControlSocketError(Exception):
    """The control socket cannot be used. The message is one line for a person."""


def socket_path(folder: Path, port: int) -> Path:
    """The socket of the ``baton up`` that serves on this port."""
    return folder / f"up-{port}.sock"


def running(folder: Path) -> dict[int, Path]:
    """Every ``baton up`` of this user that listens, by its public port."""
    found = {}
    for path in folder.glob("up-*.sock"):
        port = path.stem.removeprefix("up-")
        if port.isdecimal() and _answers(path):
            found[int(port)] = path
    return dict(sorted(found.items()))


@asynccontextmanager
async def control_socket(path: Path, handle: Handle) -> AsyncIterator[None]:
    """Take commands while inside. Commands that are under way at the end are cancelled.

    Raises ControlSocketError and PrivateFolderError.
    """
    make_private(path.parent)
    _clear(path)
    tasks: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                await _serve_one(reader, writer, handle)
        except asyncio.CancelledError:
            return  # cancelled below
        finally:
            tasks.discard(task)
            writer.close()

    try:
        server = await asyncio.start_unix_server(serve, path, limit=MAX_LINE_BYTES)
    except OSError as error:
        raise ControlSocketError(f"cannot listen on {path}: {error.strerror}") from error
    try:
        yield
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        remove(path)


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handle) -> None:
    def tell(answer: Answer) -> None:
        if not writer.is_closing():
            writer.write(encode(answer))

    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            command = decode_command(await reader.readline())
    except TimeoutError:
        answer: Answer = NotScaled("no command came")
    except msgspec.DecodeError as error:
        answer = NotScaled(f"the command is not understood: {error}")
    except ValueError:  # what StreamReader raises for a line over its limit
        answer = NotScaled(f"a command is one line of at most {MAX_LINE_BYTES} bytes")
    else:
        answer = await handle(command, tell)
    tell(answer)
    await writer.drain()


def _clear(path: Path) -> None:
    """Remove the socket that a killed ``baton up`` has left behind. Raises ControlSocketError if one still uses it."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ControlSocketError(f"{path} is too long for a socket")
    if _answers(path):
        raise ControlSocketError(f"another baton up takes commands on {path}")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True
