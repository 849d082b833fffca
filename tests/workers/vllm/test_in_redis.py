"""What the scheduler's process of a vLLM server has in Redis: its place in the registry, beside the leases."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.protocol.token_keys import announcement_key
from baton_serve.core.protocol.vllm_server import VllmStatus
from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.core.registry.announcement import VLLM_SERVERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.workers.vllm import presence
from baton_serve.workers.vllm.in_redis import InRedis
from baton_serve.workers.vllm.loop_thread import STOP_TIMEOUT_S
from baton_serve.workers.vllm.settings import ConnectorSettings
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import snapshot

URL = "http://10.0.0.5:8000"
ENGINE = "5f3c0b1e-0e3a-4a53-9c55-5f0a9f6f4a10"
TOKEN = "sesame"
POLL_S = 0.005


def config(kv_role: str = "kv_producer", dp_index: int = 0, names: Any = "m") -> Any:
    """The parts of a ``VllmConfig`` that are read."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role=kv_role,
            is_kv_producer=kv_role != "kv_consumer",
            get_from_extra_config=lambda name, default: default,
        ),
        model_config=SimpleNamespace(served_model_name=names, max_model_len=4096),
        scheduler_config=SimpleNamespace(max_num_seqs=16),
        cache_config=SimpleNamespace(block_size=32, num_gpu_blocks=40),
        parallel_config=SimpleNamespace(tensor_parallel_size=2, data_parallel_index=dp_index),
    )


def made(redis_url: str, made_from: Any = None, **settings: Any) -> InRedis:
    given = ConnectorSettings(redis_url=redis_url, **{"announce_url": URL, **settings})
    side_channel = "10.0.0.5", 5601
    return InRedis(
        made_from or config(), ENGINE, given, version="0.32.0+cpu", side_channel=side_channel, handshake_port=6601
    )


class Seen:
    """What a router with this token sees, or one without."""

    def __init__(self, redis_url: str, token: str | None = None) -> None:
        self._redis_url = redis_url
        self._key = None if token is None else announcement_key(token)

    async def listed(self) -> list[VllmStatus]:
        registry = RedisRegistry(self._redis_url, VLLM_SERVERS, key=self._key)
        found = await snapshot(registry)
        await registry.close()
        return found

    async def until(self, holds: Callable[[list[VllmStatus]], bool]) -> list[VllmStatus]:
        """The list, once it is as wanted: it is another thread that announces."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            if holds(found := await self.listed()):
                return found
            await asyncio.sleep(POLL_S)
        raise AssertionError("not in time")


@pytest.mark.parametrize(
    ("kv_role", "role"), [("kv_producer", Role.PREFILL), ("kv_consumer", Role.DECODE), ("kv_both", Role.BOTH)]
)
async def test_a_server_is_announced_until_it_stops(redis_url: str, kv_role: str, role: Role) -> None:
    server, seen = made(redis_url, config(kv_role, names=["m", "alias"])), Seen(redis_url)
    assert (server.leases is None) is (role is Role.DECODE)
    assert await seen.listed() == []
    server.start(lambda: 30)
    (status,) = await seen.until(bool)
    record = status.record
    assert (record.role, record.model, record.url, record.version) == (role, "m", URL, "0.32.0+cpu")
    assert (record.side_channel_host, record.side_channel_port, record.tp) == ("10.0.0.5", 5601, 2)
    assert record.handshake_port == 6601
    assert (record.max_num_seqs, record.max_model_len, record.block_size, record.num_blocks) == (16, 4096, 32, 40)
    assert abs(record.started_s - time.time()) < PATIENCE_S
    assert status.load == WorkerLoad(free_blocks=30, pinned_blocks=10)
    server.stop()
    assert await seen.listed() == []
    server.stop()


class Slow(RedisRegistry[VllmStatus]):
    """Others see the entry before the announcement is answered."""

    async def announce(self, entry: VllmStatus, ttl_ms: int) -> None:
        await super().announce(entry, ttl_ms)
        await asyncio.sleep(0.2)


async def test_a_server_that_stops_amid_its_first_announcement_is_withdrawn(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_serve.workers.vllm.in_redis.RedisRegistry", Slow)
    server, seen = made(redis_url), Seen(redis_url)
    server.start(lambda: 40)
    await seen.until(bool)
    server.stop()
    assert await seen.listed() == []


async def test_a_redis_that_never_answers_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_serve.workers.vllm.in_redis.RedisLeaseStore", lambda _: MemoryLeaseStore())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = made(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        server.start(lambda: 40)
        begun_s = time.monotonic()
        server.stop()
        assert time.monotonic() - begun_s < 3 * STOP_TIMEOUT_S
    assert any("runs out by itself" in record.getMessage() for record in caplog.records)


async def test_the_load_follows_the_engine(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "INTERVAL_MS", 10)
    server, seen = made(redis_url), Seen(redis_url)
    free = 40
    server.start(lambda: free)
    server.load.stepped({"a": 5, "b": 1}.keys())
    free = 37
    await seen.until(lambda found: [one.load for one in found] == [load(running=2, free=37)])
    assert server.leases is not None and server.leases.grant("a")
    server.load.finished("a")
    server.load.finished("a request that waited")
    await seen.until(lambda found: [one.load for one in found] == [load(running=1, free=37, leases=1)])
    server.load.finished("b")
    await seen.until(lambda found: [one.load for one in found] == [load(running=0, free=37, leases=1)])
    server.stop()


def load(*, running: int, free: int, leases: int = 0) -> WorkerLoad:
    return WorkerLoad(running=running, free_blocks=free, pinned_blocks=40 - free, leases=leases)


async def test_with_a_token_the_announcement_is_signed(redis_url: str) -> None:
    server = made(redis_url, internal_token=TOKEN)
    server.start(lambda: 40)
    await Seen(redis_url, TOKEN).until(bool)
    assert await Seen(redis_url, "another").listed() == []
    server.stop()
    assert await Seen(redis_url, TOKEN).listed() == []


@pytest.mark.parametrize(
    ("settings", "dp_index", "said"),
    [
        ({"announce_url": ""}, 0, "BATON_ANNOUNCE_URL is not set"),
        ({"redis_url": ""}, 0, "BATON_REDIS_URL is not set"),
        ({}, 1, ""),
    ],
    ids=["no URL", "no Redis", "another engine speaks for the server"],
)
async def test_what_is_not_announced_says_why(
    redis_url: str, caplog: pytest.LogCaptureFixture, settings: dict[str, str], dp_index: int, said: str
) -> None:
    with caplog.at_level(logging.INFO, "vllm"):
        server = made(**{"redis_url": redis_url, "made_from": config(dp_index=dp_index), **settings})
        server.start(lambda: 40)
        server.stop()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == bool(said) and all(line.startswith(said) for line in lines)
    assert await Seen(redis_url).listed() == []


async def test_a_redis_that_is_away_holds_up_neither_start_nor_end(
    free_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_serve.workers.vllm.in_redis.RedisLeaseStore", lambda _: MemoryLeaseStore())
    server = made(f"redis://127.0.0.1:{free_port}/0")
    begun_s = time.monotonic()
    server.start(lambda: 40)
    assert time.monotonic() - begun_s < 1
    server.stop()
