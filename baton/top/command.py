"""``baton top``: draws frames until q or Ctrl-C, or one with ``--once``."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from baton.admin_client import AdminClient, AdminError
from baton.top.look import Look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.settings import AdminSettings
    from baton.top.rates import Reading

    #: None: the person wants to leave.
    News = queue.SimpleQueue[Look | AdminError | None]

#: The least time over which rates are measured, and the most between two frames, seconds.
PERIOD_S = 1.0


def parameters() -> list[click.Parameter]:
    """What the command takes beside the settings."""
    return [click.Option(["--once"], is_flag=True, help="Print one frame and end.")]


def top(settings: AdminSettings, once: bool) -> int:
    """Show one router. Raises AdminError when the first look fails."""
    client = AdminClient(settings)
    if once:
        return _once(client)
    if not sys.stdout.isatty():
        raise click.UsageError("standard output is not a terminal; use --once")
    with contextlib.suppress(KeyboardInterrupt):
        _live(client)
    return 0


def _once(client: AdminClient) -> int:
    from rich.console import Console

    from baton.top.feed import ask
    from baton.top.frame import frame
    from baton.top.rates import Rates

    Console(width=None if sys.stdout.isatty() else 200).print(frame(ask(client), Rates(), client.url))
    return 0


def _live(client: AdminClient) -> None:
    from rich.console import Console
    from rich.live import Live

    from baton.top.feed import ask, watch
    from baton.top.frame import frame

    look, problem, speed = ask(client), "", Speed(client)
    news: News = queue.SimpleQueue()
    stop = threading.Event()
    # Ends with the process: what it waits for may not come before the person has left.
    threading.Thread(target=watch, args=(client, news.put, stop), daemon=True).start()
    console = Console()
    with _keys(news), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(look, speed.rates, client.url, problem, console.height), refresh=True)
            with contextlib.suppress(queue.Empty):
                match news.get(timeout=PERIOD_S):
                    case None:
                        break
                    case Look() as newest:
                        look, problem = newest, ""
                    case AdminError() as error:
                        problem = str(error)
            speed.measure()
    stop.set()


class Speed:
    """The rates over about the last ``PERIOD_S``."""

    def __init__(self, client: AdminClient) -> None:
        from baton.top.rates import Rates

        self.rates = Rates()
        self._client = client
        self._before: Reading | None = None

    def measure(self) -> None:
        """Ask again when it is time. What cannot be asked is not known; why is said by who asks for the rest."""
        from baton.top.rates import Rates, between, read

        now_s = time.monotonic()
        if self._before is not None and now_s - self._before.at_s < PERIOD_S:
            return
        try:
            reading = read(self._client.metrics(), now_s)
        except (AdminError, ValueError):
            self._before, self.rates = None, Rates()
            return
        if self._before is not None:
            self.rates = between(self._before, reading)
        self._before = reading


@contextlib.contextmanager
def _keys(news: News) -> Iterator[None]:
    """Keys without Enter while the block runs; q is None. The terminal is afterwards as it was."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    threading.Thread(target=_read_keys, args=(descriptor, news), daemon=True).start()
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read_keys(descriptor: int, news: News) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed
        while key := os.read(descriptor, 1):
            if key in b"qQ":
                break
    news.put(None)
