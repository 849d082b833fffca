"""Signals of a process as calls on its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator

#: What service managers and Ctrl-C send.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def on_signals(
    handle: Callable[[signal.Signals], object], signals: Iterable[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """While inside, call ``handle`` on the running loop for each of ``signals``, instead of what the system does.

    Does nothing outside the main thread: tests run servers in other threads, where no signal arrives.
    """
    loop = asyncio.get_running_loop()
    caught = tuple(signals) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in caught}
    for number in caught:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)  # asyncio restores the default, even if the signal was ignored (nohup)
