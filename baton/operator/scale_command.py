"""``baton scale``: changes the number of workers of the ``baton up`` on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from baton.processes.control_socket import ControlSocketError, running, socket_path
from baton.processes.private_folder import private_folder
from core.protocol.scale import MAX_WORKERS, NotScaled, Scale, Scaled, Step, decode_answer, encode

ROLES = ("prefill", "decode")


def scale(words: Sequence[str], port: int | None, path: Path | None) -> int:
    """Send the command to ``baton up``, print its answers and return 0. Raises click.UsageError, ControlSocketError."""
    command = parse(words)
    where = path if path is not None else choose(private_folder(os.environ), port)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(os.fspath(where))
            connection.sendall(encode(command))
            return _follow(connection)
        except OSError as error:
            raise ControlSocketError(f"no baton up takes commands on {where}: {error.strerror or error}") from error


def parse(words: Sequence[str]) -> Scale:
    """Parse ``prefill=2 decode=3``, or one of the two. Raises click.UsageError."""
    wanted: dict[str, int] = {}
    for word in words:
        role, _, number = word.partition("=")
        if role not in ROLES or not number.isascii() or not number.isdecimal() or role in wanted:
            raise click.UsageError(f"{word!r} is not understood; what is wanted reads prefill=2 decode=3")
        if not 1 <= int(number) <= MAX_WORKERS:
            raise click.UsageError(f"there are 1 to {MAX_WORKERS} {role} workers, not {number}; Ctrl-C stops them all")
        wanted[role] = int(number)
    if not wanted:
        raise click.UsageError("say how many workers there should be, as in: baton scale prefill=2 decode=3")
    return Scale(**wanted)


def choose(folder: Path, port: int | None) -> Path:
    """The socket of the ``baton up`` on this port, or of the only one that runs. Raises ControlSocketError."""
    if port is not None:
        return socket_path(folder, port)
    found = running(folder)
    if not found:
        raise ControlSocketError(f"no baton up of this user runs on this machine (none takes commands in {folder})")
    if len(found) > 1:
        ports = ", ".join(map(str, found))
        raise ControlSocketError(f"several baton up run on this machine, on ports {ports}; choose with --port")
    return next(iter(found.values()))


def _follow(connection: socket.socket) -> int:
    with connection.makefile("rb") as answers:
        for line in answers:
            try:
                answer = decode_answer(line)
            except msgspec.DecodeError as error:
                raise ControlSocketError(f"the answer is not understood: {error}") from None
            match answer:
                case Step(text):
                    click.echo(text)
                case Scaled(prefill, decode):
                    click.echo(f"prefill={prefill} decode={decode}")
                    return 0
                case NotScaled(reason):
                    raise ControlSocketError(reason)
    raise ControlSocketError("baton up ended meanwhile")
