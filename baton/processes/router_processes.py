"""``baton router``: one router, or several processes on one port that are started, kept and stopped together."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from baton_serve.baton.processes.child import COMMAND, ChildDiedError, ChildSpec
from baton_serve.baton.processes.kept_child import Keeping, KeptChild
from baton_serve.baton.processes.supervisor import StoppedError, StopRequests, Supervisor
from baton_serve.core.process.child_secrets import environ_for
from baton_serve.core.process.log import set_up_logging
from baton_serve.core.process.status_pipe import StatusPipe
from baton_serve.core.protocol.status import Ready

if TYPE_CHECKING:
    from baton_serve.router.settings import RouterSettings

logger = logging.getLogger(__name__)

#: Longest start, seconds: a router needs well below one, but the machine may be busy or swap.
START_TIMEOUT_S = 60.0
#: Seconds that a router may take to close after it has drained.
CLOSE_S = 5.0


def run(settings: RouterSettings, arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 after an orderly stop, 1 when it could not start; then one line on
    stderr says why.

    ``arguments`` is the command line that the settings came from, by default ``sys.argv[1:]``. Where there are several
    processes each is started with it, and finds the same variables and files.
    """
    if settings.processes == 1:
        return int(importlib.import_module("baton_serve.router.main").run(settings))
    set_up_logging(settings.log_level, settings.log_format, ())
    pipe = StatusPipe(settings.status_fd)
    from baton_serve.core.net.sockets import reserve

    try:
        sock = reserve(settings.host, settings.port)
    except OSError as error:
        return pipe.give_up("router", str(error.strerror))
    with sock:  # held until the last process has ended, so that the port stays reserved while one is restarted
        specs = _specs(settings.processes, sock.getsockname()[1], sys.argv[1:] if arguments is None else arguments)
        try:
            asyncio.run(_serve(settings, specs, pipe))
        except ChildDiedError as error:
            return pipe.give_up("router", str(error))
    return 0


def _specs(processes: int, port: int, arguments: Sequence[str]) -> list[ChildSpec]:
    """The spec of each process. A flag may occur twice; then the last one counts, which is the one added here."""
    own = ("--processes", "1", "--port", str(port), "--internal-port", "0", "--group", secrets.token_hex(6))
    argv = (*COMMAND, *arguments, *own)
    return [
        ChildSpec(f"router-{number}", argv, environ_for("router", os.environ)) for number in range(1, processes + 1)
    ]


async def _serve(settings: RouterSettings, specs: Sequence[ChildSpec], pipe: StatusPipe) -> None:
    """Run all processes until a signal comes. Raises ChildDiedError when one cannot start or start again."""
    stops = StopRequests()
    keeping = Keeping(lambda *_: None, logger.warning, START_TIMEOUT_S)
    children = [KeptChild(spec, keeping) for spec in specs]
    # A second signal is passed on: a router then aborts what runs, each request through its own exit.
    supervisor = Supervisor([children], stops, hurry=lambda child: child.terminate())
    async with stops.from_signals():
        try:
            answers = await supervisor.start()
            url = answers[specs[0].name].url
            logger.info("%d processes serve on %s", len(specs), url)
            pipe.tell(Ready(url=url))
            await supervisor.wait()
        except StoppedError:
            pass
        finally:
            await supervisor.stop(settings.drain_timeout_s + CLOSE_S)
