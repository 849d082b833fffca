"""The embedded Redis of ``baton up`` as a child like any other, watched and started again like the others."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

from baton_serve.baton.processes.child import ChildDiedError, ChildSpec, exit_text
from baton_serve.baton.processes.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from baton_serve.baton.processes.kept_child import Keeping, KeptChild
from baton_serve.core.protocol.status import Ready

NAME = "redis"


class RedisChild:
    """One life of an ``EmbeddedRedis``; the next one is empty and has the same URL. Has the methods of ``Child``.

    Starting and stopping block the loop for a few milliseconds: its parent has to be the main thread, which lives as
    long as this process.
    """

    name = NAME

    def __init__(self, redis: EmbeddedRedis) -> None:
        self._redis = redis

    @property
    def runs(self) -> bool:
        """Whether the process lives."""
        return self._redis.running

    async def start(self) -> None:
        """Start the server if it does not run; returns when it takes connections. Raises ChildDiedError."""
        try:
            self._redis.start()
        except EmbeddedRedisError as error:
            raise ChildDiedError(f"{NAME}: {error}") from error

    async def ready(self) -> Ready:
        """Returns at once: the server serves once it is started."""
        return Ready(url=self._redis.url)

    async def ended(self) -> str:
        """Wait until the server has ended; returns one line that says how."""
        if self._redis.running:
            await _process_end(self._redis.pid)
        code = self._redis.exit_code
        return f"{NAME}: {'has ended' if code is None else exit_text(code)}"

    async def stop(self, timeout_s: float) -> None:
        """End the server, without regard to ``timeout_s``. The directory stays for the next life."""
        self._redis.end()

    async def leave(self, timeout_s: float) -> None:
        """Do as ``stop``."""
        self._redis.end()

    def terminate(self) -> None:
        """End the server at once: it has nothing to finish."""
        self._redis.kill()

    def kill(self) -> None:
        """End it at once."""
        self._redis.kill()


def keep_redis(redis: EmbeddedRedis, keeping: Keeping) -> KeptChild:
    """The server as a child that is kept. Its first start is not shown: it runs before the other children do."""
    own = replace(
        keeping, on_status=lambda *_: None, make_child=lambda *_: RedisChild(redis), as_whom=lambda _: ", empty"
    )
    return KeptChild(ChildSpec(NAME, (), {}), own)


async def _process_end(pid: int) -> None:
    """Wait until a process has ended, without reaping it."""
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
