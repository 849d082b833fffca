"""Both lease stores behind one harness whose time passes when the test says so."""

from __future__ import annotations

from typing import cast

import redis

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.leases.store import LeaseStore


class Clock:
    """A clock in ms that stands still until it is told to move."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class MemoryHarness:
    """The in-memory store with its injected clock."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._memory = MemoryLeaseStore(self._clock)
        self.store: LeaseStore = self._memory

    def advance(self, ms: int) -> None:
        self._clock.advance(ms)

    def lose_everything(self) -> None:
        with self._memory._changed:
            self._memory._tables.clear()


class RedisHarness:
    """A real Redis. Its clock cannot be moved, so its contents move: every point in time in it is set ``ms`` back."""

    def __init__(self, url: str) -> None:
        self.store: LeaseStore = RedisLeaseStore(url)
        self.client = redis.Redis.from_url(url)

    def advance(self, ms: int) -> None:
        for key in cast("list[bytes]", self.client.keys("baton:*")):
            self._shift_expiry(key, ms)
            if self.client.type(key) == b"zset":
                self._shift_scores(key, ms)

    def lose_everything(self) -> None:
        self.client.flushall()

    def close(self) -> None:
        self.store.close()
        self.client.close()

    def _shift_expiry(self, key: bytes, ms: int) -> None:
        left_ms = self.client.pttl(key)
        assert left_ms > 0, f"{key!r} would stay for ever"
        self.client.pexpire(key, left_ms - ms)

    def _shift_scores(self, key: bytes, ms: int) -> None:
        for member, score in cast("list[tuple[bytes, float]]", self.client.zrange(key, 0, -1, withscores=True)):
            self.client.zincrby(key, ms if score < 0 else -ms, member.decode())


#: A store, whose time passes on request, and which can lose everything as a restart without persistence does.
Harness = MemoryHarness | RedisHarness
