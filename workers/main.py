"""``run(settings)``: one worker process, from its sockets to its exit code.

SIGTERM drains: the worker refuses new requests, waits for running ones and for leases, at most ``drain_timeout_s``, and
then stops. SIGINT, or a second SIGTERM, stops at once. If a rank dies, the process ends with status 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from baton_serve.core.net.served.config import raise_descriptor_limit
from baton_serve.core.net.sockets import bind
from baton_serve.core.net.tls import TlsError
from baton_serve.core.process import failpoints
from baton_serve.core.process.log import set_up_logging
from baton_serve.core.process.signals import on_signals
from baton_serve.core.process.status_pipe import StatusPipe
from baton_serve.core.protocol.status import Ready
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.stores import complaint, lease_store, registry
from baton_serve.workers.rank_protocol.errors import RankError, one_line
from baton_serve.workers.settings import WorkerSettings
from baton_serve.workers.text.model_files import ModelFileError
from baton_serve.workers.text.tokenizer import TokenizerError
from baton_serve.workers.worker import WorkerProcess

logger = logging.getLogger(__name__)

#: The name of this process in the line that says why it cannot continue.
WHO = "worker"
#: Loggers of libraries that log a line for every request or connection.
QUIET = ("uvicorn", "uvicorn.error", "httpx", "httpcore", "transformers", "asyncio")


def run(settings: WorkerSettings) -> int:
    """Serve until a signal. Returns 0 after an orderly stop, or 1 if the worker could not start or continue; then one
    line on stderr names the reason.
    """
    set_up_logging(settings.log_level, settings.log_format, QUIET)
    failpoints.arm(os.environ)
    raise_descriptor_limit()
    _prepare_tokenizers()
    pipe = StatusPipe(settings.status_fd)
    try:
        public = bind(settings.host, settings.port)
        try:
            internal = bind(settings.bound_internal_host, settings.internal_port)
        except OSError:
            public.close()
            raise
    except OSError as error:
        return pipe.give_up(WHO, str(error.strerror))
    with public, internal:
        why = uvloop.run(serve(settings, (public, internal), pipe))
    return 0 if why is None else pipe.give_up(WHO, why)


async def serve(settings: WorkerSettings, sockets: tuple[socket.socket, socket.socket], pipe: StatusPipe) -> str | None:
    """Serve on bound sockets until a signal. Returns None, or what went wrong in one line."""
    warn(settings)
    signals = _Signals()
    with on_signals(signals.take):
        return await _serve(settings, sockets, pipe, signals)


async def _serve(
    settings: WorkerSettings, sockets: tuple[socket.socket, socket.socket], pipe: StatusPipe, signals: _Signals
) -> str | None:
    try:
        why = await asyncio.to_thread(complaint, settings)
        if why is not None:
            return why
        leases, workers = lease_store(settings), registry(settings, WORKERS)
    except ValueError:  # a bad option in the URL, which the exception's message may repeat
        return "redis_url is not understood by the Redis client"
    try:
        async with AsyncExitStack() as parts:
            parts.callback(leases.close)
            parts.push_async_callback(workers.close)
            worker = WorkerProcess(settings, sockets, leases, workers, pipe.tell)
            parts.push_async_callback(worker.stop)
            if not await _first(worker.start(), signals.leave.wait()):
                return None
            pipe.tell(Ready(url=worker.url, internal_url=worker.internal_url, worker_id=worker.worker_id))
            names = ", ".join([settings.model_name, *settings.adapters])
            logger.info("serving %s as %s on %s", names, settings.role, worker.url)
            return await _until_signal(worker, signals, settings.drain_timeout_s)
    except (TlsError, RankError, TokenizerError, ModelFileError) as error:
        return one_line(error)


def warn(settings: WorkerSettings) -> None:
    """Log a warning for every dangerous setting."""
    if settings.unsafe_disable_fence:
        logger.warning("unsafe_disable_fence is on: answers may be made of blocks that belong to other prompts")


async def _until_signal(worker: WorkerProcess, signals: _Signals, drain_timeout_s: float) -> str | None:
    if await _first(signals.leave.wait(), asyncio.shield(worker.failed)) and not worker.failed.done():
        await _drain(worker, signals, drain_timeout_s)
    return worker.failed.result() if worker.failed.done() else None


async def _drain(worker: WorkerProcess, signals: _Signals, timeout_s: float) -> None:
    """Drain the worker until it is idle, the timeout passes, a second signal comes, or the worker fails."""
    if not signals.hurry.is_set():
        logger.info("draining, for at most %g s or until a second SIGTERM", timeout_s)
    others = signals.hurry.wait(), asyncio.shield(worker.failed)
    if not await _first(worker.drain(), *others, timeout_s=timeout_s):
        logger.warning("leaving before everything was over")


async def _first(
    wanted: Coroutine[Any, Any, object], *others: Awaitable[object], timeout_s: float | None = None
) -> bool:
    """Wait until one of them is done, or for ``timeout_s``, and cancel those that are not.

    Returns whether ``wanted`` is done; raises what that has raised.
    """
    task = asyncio.create_task(wanted)
    tasks = [task, *map(asyncio.ensure_future, others)]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        await task
        return True
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Signals:
    """SIGTERM sets ``leave``; SIGINT or a second SIGTERM sets ``hurry`` too."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.hurry = asyncio.Event()

    def take(self, number: signal.Signals) -> None:
        if number is signal.SIGINT or self.leave.is_set():
            self.hurry.set()
        self.leave.set()


def _prepare_tokenizers() -> None:
    # Without this line transformers would import torch (2 s, 300 MB), which only the ranks need.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    # tokenizers would start a pool of threads for batches, but here each prompt is encoded alone.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # the advice is to install torch
