"""The embedded Redis of ``baton up``, started again when it dies."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from baton.processes.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from baton.processes.restarts import Restarts

NAME = "redis"


async def keep_redis(redis: EmbeddedRedis, on_news: Callable[[str], None]) -> str:
    """Start ``redis`` again, empty and under the same URL, whenever it dies; returns why it is given up.

    Its few milliseconds of start block the loop: its parent has to be the main thread.
    """
    restarts = Restarts()
    restarts.serves(time.monotonic())
    reason = f"{NAME}: has ended"
    while True:
        if redis.running:
            await process_end(redis.pid)
        pause_s = restarts.died(time.monotonic())
        redis.kill()  # reaps it
        if restarts.is_hopeless:
            return reason
        on_news(f"{reason}; starting it again in {pause_s:.1f} s")
        await asyncio.sleep(pause_s)
        try:
            redis.start()
            restarts.serves(time.monotonic())
            reason = f"{NAME}: has ended"
            on_news(f"{NAME}: serves again, empty")
        except EmbeddedRedisError as error:
            reason = f"{NAME}: {error}"


async def process_end(pid: int) -> None:
    """Wait until a process that somebody else reaps has ended."""
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
