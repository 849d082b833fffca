"""Long work on the event loop, in turns with other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

#: Tokens that are worked on before other tasks of the event loop may run (about 1 ms).
NUM_TOGETHER = 64
T = TypeVar("T")


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a turn for other tasks after every ``NUM_TOGETHER`` of them. Each takes as long as a token."""
    for count, item in enumerate(items, 1):
        yield item
        if count % NUM_TOGETHER == 0:
            await asyncio.sleep(0)
