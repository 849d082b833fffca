"""What a real Redis spends on the project's own calls: CPU time of its process, by what the kernel counts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.leases.ids import new_id
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerStatus
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from bench.worker_record import worker_record

#: Leases in the smaller and the larger renewal, and listeners to announcements, between which a line is drawn.
FEW, MANY = 1, 64
NUM_CALLS = 300
DURATION_MS = 60_000
MODEL, NUM_BLOCKS = "a-model-of-some-name", 16_384


@dataclass(frozen=True)
class RedisCosts:
    """Microseconds of one core of Redis."""

    #: A renewal is ``renew_us`` and ``renew_lease_us`` for each lease in it.
    renew_us: float
    renew_lease_us: float
    #: A grant of one lease, and the report that one has been read.
    grant_us: float
    done_us: float
    #: A worker's announcement is ``announce_us`` and ``deliver_us`` for each router that listens.
    announce_us: float
    deliver_us: float

    def renewals(self, num_leases: int, num_pairs: int, interval_s: float) -> float:
        """Share of a core for leases that are renewed so often, in calls for as many pairs of a router and a P."""
        calls = min(num_leases, num_pairs) / interval_s
        return (calls * self.renew_us + num_leases / interval_s * self.renew_lease_us) / 1e6

    def requests(self, rate: float) -> float:
        """Share of a core for the grants and the ends of leases of that many requests a second."""
        return rate * (self.grant_us + self.done_us) / 1e6

    def announcements(self, num_workers: int, num_routers: int, rate: float) -> float:
        """Share of a core for workers that announce themselves so often a second."""
        return num_workers * rate * (self.announce_us + num_routers * self.deliver_us) / 1e6


def measure() -> RedisCosts:
    """Measure with a Redis of its own. Raises EmbeddedRedisError if there is none."""
    with EmbeddedRedis() as redis:
        store = RedisLeaseStore(redis.url)
        try:
            few, many = (_renewal_us(redis, store, num) for num in (FEW, MANY))
            grant_us, done_us = _request_us(redis, store)
        finally:
            store.close()
        alone, heard = (asyncio.run(_announcement_us(redis, num)) for num in (0, MANY))
    per_lease = max(0.0, many - few) / (MANY - FEW)
    return RedisCosts(
        max(0.0, few - per_lease * FEW), per_lease, grant_us, done_us, alone, max(0.0, heard - alone) / MANY
    )


def _renewal_us(redis: EmbeddedRedis, store: RedisLeaseStore, num_leases: int) -> float:
    engine, leases = new_id(), [new_id() for _ in range(num_leases)]
    store.grant(engine, leases, DURATION_MS)
    return _us_each(redis, lambda _: store.renew(engine, leases, DURATION_MS))


def _request_us(redis: EmbeddedRedis, store: RedisLeaseStore) -> tuple[float, float]:
    engine, leases = new_id(), [[new_id()] for _ in range(NUM_CALLS)]
    return (
        _us_each(redis, lambda number: store.grant(engine, leases[number], DURATION_MS)),
        _us_each(redis, lambda number: store.reap(engine, [], leases[number])),
    )


async def _announcement_us(redis: EmbeddedRedis, num_listeners: int) -> float:
    registry = RedisRegistry(redis.url, WORKERS)
    try:
        with ExitStack() as stack:
            listeners = [stack.enter_context(_listener(redis)) for _ in range(num_listeners)]
            begin_ns = _busy_ns(redis.pid)
            for number in range(NUM_CALLS):
                await registry.announce(_status(number), DURATION_MS)
                for listener in listeners:
                    listener.recv(1 << 20)
            return (_busy_ns(redis.pid) - begin_ns) / NUM_CALLS / 1e3
    finally:
        await registry.close()


@contextmanager
def _listener(redis: EmbeddedRedis) -> Iterator[socket.socket]:
    """A bare connection that is subscribed: Redis has as much to do for it as for a router."""
    path = redis.url.removeprefix("unix://").split("?")[0]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(f"SUBSCRIBE {WORKERS.channel}\r\n".encode())
        connection.recv(1 << 16)
        yield connection


def _status(number: int) -> WorkerStatus:
    record = worker_record(Role.PREFILL, MODEL, "http://10.11.12.13:8000", num_blocks=NUM_BLOCKS, max_num_seqs=256)
    return WorkerStatus(record=record, load=WorkerLoad(running=number, free_blocks=NUM_BLOCKS - number))


def _us_each(redis: EmbeddedRedis, call: Callable[[int], object]) -> float:
    begin_ns = _busy_ns(redis.pid)
    for number in range(NUM_CALLS):
        call(number)
    return (_busy_ns(redis.pid) - begin_ns) / NUM_CALLS / 1e3


def _busy_ns(pid: int) -> int:
    """Time that the main thread of a process has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
