"""How long tests wait for what must happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Seconds. Every wait ends with what it waits for, so a test that passes does not take longer for it. Twenty programs
#: that share two cores make seconds of what takes milliseconds. Below the limit of a whole test in pyproject.toml.
PATIENCE_S = 100.0


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Until the condition holds; fails after a while. For what happens without anybody to wait on."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (the far side of a socket has no event to wait on)
            await asyncio.sleep(0.002)
    assert condition(), what
