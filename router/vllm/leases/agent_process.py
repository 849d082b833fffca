"""Keeps the process with the NIXL agent running: starts it, passes messages, starts it again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable

from baton_serve.core.net.access.hosts import is_loopback
from baton_serve.core.process.child_secrets import environ_for
from baton_serve.core.process.frames import encode, read
from baton_serve.core.process.parent_death import die_with_parent
from baton_serve.core.process.socket_child import start_with_socket
from baton_serve.core.process.task_end import end_task
from baton_serve.core.ucx import apply_ucx_environment
from baton_serve.router.vllm.leases.agent.messages import FROM_AGENT, FromAgent, ToAgent

logger = logging.getLogger(__name__)

#: Seconds before a process that died is started again: the first pause, and the longest after doubling.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
#: After so many seconds of life, a death counts as the first one.
STEADY_S = 60.0
#: Seconds that the process has for its last notifications.
CLOSE_S = 2.0


class AgentProcess:
    """The process, from the first ``start`` until ``close``. Methods and callbacks are of one event loop.

    ``on_event`` gets what the process says, in order; ``on_end`` is called when it has ended, whatever the reason.
    """

    def __init__(self, on_event: Callable[[FromAgent], None], on_end: Callable[[], None]) -> None:
        self._on_event = on_event
        self._on_end = on_end
        self._process: Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_loopback_only = True
        self._closing = False

    def __repr__(self) -> str:
        return f"<AgentProcess pid={self.pid} {'loopback' if self._is_loopback_only else 'all interfaces'}>"

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return None if self._process is None else self._process.pid

    def start(self, host: str) -> None:
        """Have a process run that can reach ``host``. Where all are on loopback, UCX listens there only.

        UCX reads its environment once, so the first host that is elsewhere costs a new process.
        """
        if self._is_loopback_only and not is_loopback(host.lower()):
            self._is_loopback_only = False
            if self._process is not None:
                logger.info("a vLLM worker is not on loopback: the process that renews leases starts again")
            self._kill()
        if self._keeper is None and not self._closing:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="vllm agent process")

    def send(self, command: ToAgent) -> None:
        """Queue a command. It is lost when the process does not run, or dies: ``on_end`` is for that."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(command))

    def kill(self, why: str) -> None:
        """End a process that does not do its work; another one is started."""
        logger.warning("the process that renews the leases of vLLM workers %s, and is killed", why)
        self._kill()

    async def close(self) -> None:
        """Let the process do what it was told, and end it. Nothing is called back any more."""
        self._closing = True
        if self._keeper is None:
            return
        if self._process is not None and self._writer is not None:
            # Not ``close()``: what the process still says must be read, or it could not end.
            self._writer.write_eof()
            await asyncio.wait({self._keeper}, timeout=CLOSE_S)
            self._kill()
            await asyncio.wait({self._keeper}, timeout=CLOSE_S)
        await end_task(self._keeper)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = loop.time()
            try:
                await self._run_once()
            except OSError as error:
                logger.warning("the process that renews the leases of vLLM workers cannot be started: %s", error)
            except Exception:  # without the process no lease would be renewed
                logger.exception("what the process that renews the leases of vLLM workers said met a bug")
            if self._closing:
                return
            logger.warning("the process that renews the leases of vLLM workers has ended; it is started again")
            self._on_end()
            if loop.time() - began_s >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self) -> None:
        """Start the process, and pass on what it says until it has ended. Raises OSError if it cannot be started."""
        is_loopback_only = self._is_loopback_only
        self._process, (reader, self._writer) = await start_with_socket(
            "baton_serve.router.vllm.leases.agent.main",
            environ=_environment(is_loopback_only),
            before_exec=die_with_parent(),
            new_session=True,  # Ctrl-C goes to the whole process group, and the last releases come after it
        )
        if is_loopback_only is not self._is_loopback_only:  # the first host that is elsewhere came meanwhile
            self._kill()
        try:
            while (event := await read(reader, FROM_AGENT)) is not None:
                if not self._closing:
                    self._on_event(event)
        finally:
            self._writer.close()
            self._kill()
            await self._process.wait()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
            self._process = self._writer = None

    def _kill(self) -> None:
        # Not ``kill()`` of asyncio: that polls first, and so may take the exit status away from the loop.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)


def _environment(is_loopback_only: bool) -> dict[str, str]:
    environ = environ_for("helper", os.environ)
    apply_ucx_environment("127.0.0.1" if is_loopback_only else "0.0.0.0", environ)
    return environ
