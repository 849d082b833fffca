"""``baton scale``: changes the number of workers of the ``baton up`` on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from baton_serve.baton.processes.control_socket import ControlSocketError, running, socket_path
from baton_serve.baton.processes.private_folder import private_folder
from baton_serve.core.protocol.addresses import HTTP_PORTS
from baton_serve.core.protocol.scale import MAX_WORKERS, NotScaled, Scale, Scaled, Step, decode_answer, encode

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
        example = f"--url http://127.0.0.1:{next(iter(found))}"
        raise ControlSocketError(f"several baton up run on this machine, on ports {ports}; choose one, as in {example}")
    return next(iter(found.values()))


def port_of(url: str) -> int:
    """The public port of a ``baton up`` of this machine. Raises ControlSocketError for the URL of another machine."""
    parts = urlsplit(url)
    if not _is_of_this_machine(parts.hostname or ""):
        raise ControlSocketError(f"{url} is not on this machine: baton scale runs where its baton up runs")
    return parts.port or HTTP_PORTS[parts.scheme]


def _is_of_this_machine(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_listen(family, address) for family, _, _, _, address in found)


def _can_listen(family: int, address: tuple[Any, ...]) -> bool:
    """Whether a socket can listen there, which it can on addresses of this machine only."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(address)
        return True
    return False


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
