"""What others may have written into the registry, and what is done about it: one line, and serving goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
import redis
from redis.asyncio.client import Pipeline

from baton_serve.core.registry import redis_registry, view
from baton_serve.core.registry.announcement import (
    MAX_BYTES,
    ROUTERS,
    VLLM_SERVERS,
    WORKERS,
    Kind,
    NotAnAnnouncementError,
    WorkerAnnouncement,
    encode,
)
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.core.registry.view import RegistryView
from tests.kits.registry import LONG_MS, Watch, router, snapshot, vllm_server, worker

WORKER = encode(WORKERS.announce(worker("a"), LONG_MS))
SERVER = encode(VLLM_SERVERS.announce(vllm_server("a"), LONG_MS))


def changed(announcement: bytes, path: str, value: Any) -> bytes:
    """With one field set."""
    here = data = msgspec.json.decode(announcement)
    *way, last = path.split(".")
    for part in way:
        here = here[part]
    here[last] = value
    return msgspec.json.encode(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("worker_id", "a:b"),
        ("ttl_ms", 2**60),
        ("status.record.url", "http://[::1"),
        ("status.record.url", "http://w:99999"),
        ("status.record.url", "http://w:1/\r\nx: y"),
        ("status.record.url", "file:///etc/passwd"),
        ("status.record.url", "w:1"),
        ("status.record.url", "http://user@w:1"),
        ("status.record.url", "http://€:1"),
        ("status.record.url", "http://" + "a." * 500),
        ("status.record.internal_url", "http://w w:1"),
        ("status.record.engine_id", "a} b"),
        ("status.record.engine_id", ""),
        ("status.record.model", "m" * 10_000),
        ("status.record.compatibility_hash", "c" * 10_000),
        ("status.record.weights_fingerprint", "f" * 10_000),
        ("status.record.adapters", [{"name": str(i), "root": "r", "fingerprint": "f"} for i in range(129)]),
        ("status.record.adapters", [{"name": "n" * 10_000, "root": "r", "fingerprint": "f"}]),
        ("status.record.adapters", [{"name": "n", "root": "r", "fingerprint": "f" * 10_000}]),
        ("status.record.adapters", [{"name": "n"}]),
        ("status.record.num_blocks", -1),
        ("status.record.block_size", 2**62),
        ("status.load.free_blocks", -(2**40)),
        ("status.load.leases", 1e9),
        ("status.load.peer_errors", {str(i): "" for i in range(1000)}),
        ("status.load.peer_errors", {"a": "x" * 10_000}),
    ],
)
def test_a_value_that_no_worker_of_ours_announces_is_no_announcement(path: str, value: Any) -> None:
    with pytest.raises(NotAnAnnouncementError) as caught:
        WORKERS.decode(changed(WORKER, path, value))
    assert len(str(caught.value)) <= 200 and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("server_id", "a:b"),
        ("status.record.server_id", "another"),
        ("status.record.role", "other"),
        ("status.record.url", "file:///etc/passwd"),
        ("status.record.url", "http://user@w:1"),
        ("status.record.url", "http://w:1/"),
        ("status.record.model", "m" * 10_000),
        ("status.record.version", "1" * 10_000),
        ("status.record.version", "0.32\n"),
        ("status.record.side_channel_host", "w w"),
        ("status.record.side_channel_host", ""),
        ("status.record.side_channel_port", 0),
        ("status.record.side_channel_port", 65536),
        ("status.record.handshake_port", -1),
        ("status.record.handshake_port", 65536),
        ("status.record.max_num_seqs", -1),
        ("status.record.tp", 2**62),
        ("status.record.started_s", -1.5),
        ("status.load.running", -1),
        ("status.load.peer_errors", {"a": "x" * 10_000}),
    ],
)
def test_a_value_that_no_vllm_server_announces_is_no_announcement(path: str, value: Any) -> None:
    assert VLLM_SERVERS.decode(SERVER).entry == vllm_server("a")
    with pytest.raises(NotAnAnnouncementError) as caught:
        VLLM_SERVERS.decode(changed(SERVER, path, value))
    assert len(str(caught.value)) <= 200 and str(caught.value).isprintable()


@pytest.mark.parametrize("kind", [WORKERS, ROUTERS], ids=["worker", "router"])
@pytest.mark.parametrize(
    "data",
    [
        b'{"x":' + b"[" * 100_000,
        b'{"x":' * 50_000,
        b" " * (MAX_BYTES + 1),
        b'{"worker_id":"' + b"a\\n" * 10_000 + b'"}',
    ],
)
def test_values_that_are_too_deep_or_too_long_are_no_announcements(kind: Kind[Any], data: bytes) -> None:
    with pytest.raises(NotAnAnnouncementError):
        kind.decode(data)


def test_a_router_without_a_proper_address_is_no_announcement() -> None:
    bad = msgspec.structs.replace(router("a"), internal_url="//x")
    with pytest.raises(NotAnAnnouncementError):
        ROUTERS.decode(encode(ROUTERS.announce(bad, LONG_MS)))


async def test_a_huge_value_is_not_even_fetched(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    registry = RedisRegistry(redis_url, WORKERS)
    await registry.announce(worker("a"), LONG_MS)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.setrange(WORKERS.key_prefix + "huge", 64 << 20, b"x")
        before = foreign.info("stats")["total_net_output_bytes"]
        assert await snapshot(registry) == [worker("a")]
        assert foreign.info("stats")["total_net_output_bytes"] - before < 2 * MAX_BYTES
    assert len(caplog.records) == 1
    await registry.close()


@pytest.mark.parametrize("left_ms", [-2, 0], ids=["gone", "its last millisecond"])
async def test_a_key_that_runs_out_while_it_is_read_is_no_foreign_value(
    redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, left_ms: int
) -> None:
    def run_out(pipe: Pipeline, key: bytes) -> Pipeline:
        return pipe.execute_command("EVAL", f"return {left_ms}", 0)

    monkeypatch.setattr(Pipeline, "pttl", run_out)
    registry = RedisRegistry(redis_url, WORKERS)
    await registry.announce(worker("a"), LONG_MS)
    assert await snapshot(registry) == []
    assert not caplog.records
    await registry.close()


async def test_a_key_that_never_runs_out_is_complained_about_by_its_name(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = RedisRegistry(redis_url, WORKERS)
    await registry.announce(worker("a"), LONG_MS)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.persist(WORKERS.key_prefix + "a")
        foreign.set(WORKERS.key_prefix + "\n\x1b[2J", "x")
    assert await snapshot(registry) == []
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 2 and all(message.isprintable() for message in messages)
    assert messages[1].startswith(f"ignored a foreign value in the registry at {WORKERS.key_prefix}a: ")
    await registry.close()


async def test_foreign_values_are_skipped_and_complained_about_once(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = RedisRegistry(redis_url, WORKERS)
    await registry.announce(worker("a"), LONG_MS)
    await registry.announce(worker("without-expiry"), LONG_MS)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.set(WORKERS.key_prefix + "broken", b"\xff{")
        foreign.set(WORKERS.key_prefix + "json", b'{"worker_id": 3}')
        foreign.lpush(WORKERS.key_prefix + "list", "x")
        foreign.set(WORKERS.key_prefix + "liar", foreign.get(WORKERS.key_prefix + "a") or b"", px=LONG_MS)
        foreign.persist(WORKERS.key_prefix + "without-expiry")
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert await snapshot(registry) == [worker("a")]
        assert len(caplog.records) == 5
        async with Watch(registry) as watch:
            assert await watch.next() == [worker("a")]
            for garbage in (b"", b"\xff", b"{}", b'{"worker_id": "a", "ttl_ms": -1}', b"x" * (1 << 20)):
                foreign.publish(WORKERS.channel, garbage)
            foreign.publish(WORKERS.channel, b'{"x":' + b"[" * 100_000)
            foreign.publish(WORKERS.channel, changed(WORKER, "status.record.url", "http://["))
            await registry.withdraw("a")
            assert await watch.next() == []
    assert len(caplog.records) == 6, "and once about all that came by the channel"
    await registry.close()


async def test_of_too_many_keys_some_are_left_out_with_one_line(
    redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_registry, "MAX_KEYS", 20)
    registry = RedisRegistry(redis_url, WORKERS)
    await asyncio.gather(*(registry.announce(worker(f"w{i:02}"), LONG_MS) for i in range(40)))
    for _ in range(2):
        assert len(await snapshot(registry)) == 20
    assert len(caplog.records) == 1
    await registry.close()


def test_known_workers_are_kept_when_too_many_announce_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MAX_KNOWN", 3)
    seen: RegistryView[Any] = RegistryView()
    for number in range(5):
        seen.apply(WorkerAnnouncement(id=f"w{number}", ttl_ms=10, entry=worker(f"w{number}")), 0)
    seen.merge([(WorkerAnnouncement(id="w9", ttl_ms=10, entry=worker("w9")), 10)], 1)
    seen.apply(WorkerAnnouncement(id="w0", ttl_ms=10, entry=worker("w0", 7)), 1)
    assert [entry.record.worker_id for entry in seen.alive()] == ["w0", "w1", "w2"]
    assert seen.alive()[0].load.running == 7
