"""Starts a rank process with one end of a socket pair. No torch here."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from baton_serve.core.process.child_secrets import environ_for
from baton_serve.core.process.socket_child import Streams, start_with_socket
from baton_serve.workers.rank_protocol.spec import RankSpec

#: Variables with the folders of the hub's models and token. Relative paths are made absolute, because a rank has
#: another current directory.
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "XDG_CACHE_HOME")

#: Rounds that a thread of OpenMP waits before it sleeps: about 0.1 ms, longer than the waits within a step. With the
#: default, some milliseconds, steps took 120 times as long beside two busy processes on two cores; now 3 to 5 times.
SPIN_COUNT = "4000"


async def launch(spec: RankSpec, environ: Mapping[str, str]) -> tuple[Process, Streams]:
    """Start a rank; returns the process and this end of its connection. ``environ`` is added to this one's."""
    return await start_with_socket(
        "baton_serve.workers.rank.main",
        msgspec.json.encode(_anywhere(spec)).decode(),
        environ=_patience(_absolute_caches({**environ_for("rank", os.environ), **environ})),
        # Ctrl-C goes to the whole process group, and may come while Python is still starting in the rank.
        before_exec=_ignore_interrupts,
    )


def _anywhere(spec: RankSpec) -> RankSpec:
    """``spec`` with the absolute path of a local model."""
    folder = Path(spec.model).expanduser()
    return msgspec.structs.replace(spec, model=str(folder.absolute())) if folder.exists() else spec


def _absolute_caches(environ: Mapping[str, str]) -> dict[str, str]:
    caches = {key: str(Path(environ[key]).expanduser().absolute()) for key in _CACHES if environ.get(key)}
    return {**environ, **caches}


def _patience(environ: Mapping[str, str]) -> dict[str, str]:
    """How long threads of GNU's OpenMP keep a core busy while they wait, unless the environment says it already."""
    is_said = "GOMP_SPINCOUNT" in environ or "OMP_WAIT_POLICY" in environ
    return {**environ} if is_said else {**environ, "GOMP_SPINCOUNT": SPIN_COUNT}


def _ignore_interrupts() -> None:
    """Ignore SIGINT. An ignored signal stays ignored in the program that is executed next."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
