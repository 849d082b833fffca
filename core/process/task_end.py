"""Ends asyncio tasks: one that may swallow a cancellation, or some that are to finish."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

#: Seconds until a task that has not ended is cancelled again.
AGAIN_S = 0.05


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` until it has ended; its exception is dropped.

    Cancelling once is not enough: redis-py writes under ``asyncio.wait_for``, which in Python 3.11 loses a cancellation
    that arrives just when the write is done (CPython issue 86296). A task with an endless loop would continue.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_S)
    if not task.cancelled():
        task.exception()


async def finish_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until the tasks that are given now have ended. If cancelled, cancels them."""
    waited_for = list(tasks)
    try:
        if waited_for:
            await asyncio.wait(waited_for)
    finally:
        for task in waited_for:
            task.cancel()
