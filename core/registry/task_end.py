"""Ends a task that talks to the registry."""

from __future__ import annotations

import asyncio
from typing import Any

#: Seconds until a task that has not ended is cancelled again.
AGAIN_S = 0.05


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` until it has ended; what it raises is nobody's concern any more.

    Once is not enough: redis-py writes under ``asyncio.wait_for``, and that of Python 3.11 forgets a cancellation that
    arrives just when the write is done (CPython issue 86296). A task that never stops by itself would run on.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_S)
    if not task.cancelled():
        task.exception()
