"""``baton top``: draws frames until q or Ctrl-C; with ``--once`` it draws one."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from typing import TYPE_CHECKING

import click

from baton_serve.baton.operator.admin_client import AdminClient, AdminError
from baton_serve.baton.operator.top.look import Look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton_serve.baton.settings import AdminSettings

    #: None: the person wants to quit.
    News = queue.SimpleQueue[Look | AdminError | None]

#: Longest time between two frames, seconds: the window's size may have changed.
PERIOD_S = 1.0
#: The size of a frame without a terminal: wide enough for every column, and without a limit on lines.
_PIPE_COLUMNS, _ENDLESS = 200, 10_000


def parameters() -> list[click.Parameter]:
    """The options of the command in addition to its settings."""
    return [click.Option(["--once"], is_flag=True, help="Print one frame and end.")]


def top(settings: AdminSettings, once: bool) -> int:
    """Show what a router knows. Raises AdminError when the first look fails, and UsageError without a terminal."""
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

    from baton_serve.baton.operator.top.feed import look_once
    from baton_serve.baton.operator.top.frame import frame

    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    console.print(frame(look_once(client), client.url, width=console.width, height=_ENDLESS))
    return 0


def _live(client: AdminClient) -> None:
    from rich.console import Console
    from rich.live import Live

    from baton_serve.baton.operator.top.feed import watch
    from baton_serve.baton.operator.top.frame import frame

    news: News = queue.SimpleQueue()
    stop = threading.Event()
    # A daemon: it may still wait for a snapshot when the person has quit.
    threading.Thread(target=watch, args=(client, news.put, stop), daemon=True).start()
    look, problem = _first(news), ""
    console = Console()
    with _keys(news), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = frame(look, client.url, problem, console.width, console.height)
            live.update(shown, refresh=True)
            with contextlib.suppress(queue.Empty):
                match news.get(timeout=PERIOD_S):
                    case None:
                        break
                    case Look() as newest:
                        look, problem = newest, ""
                    case AdminError() as error:
                        problem = str(error)
    stop.set()


def _first(news: News) -> Look:
    """The first look. Raises AdminError when there is none."""
    first = news.get()
    if isinstance(first, Look):
        return first
    raise first or AdminError("there is nothing to show")


@contextlib.contextmanager
def _keys(news: News) -> Iterator[None]:
    """Read keys without Enter while inside; q puts None into ``news``. Afterwards the terminal is as it was before."""
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
