"""With an internal token: what others write into Redis makes nobody a worker or a router."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from baton_serve.core.protocol.token_keys import announcement_key
from baton_serve.core.registry import view as views
from baton_serve.core.registry.announcement import ROUTERS, WORKERS, Kind, WorkerAnnouncement, encode
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.core.registry.signature import UntrustedError, sign, verify
from baton_serve.core.registry.view import RegistryView
from tests.kits.registry import LONG_MS, Watch, router, snapshot, worker

KEY = announcement_key("sesame")
SIGNED = sign(KEY, "worker", encode(WORKERS.announce(worker("a"), LONG_MS, 1)))


@pytest.fixture(params=["worker", "router"])
def kind(request: pytest.FixtureRequest) -> Kind[Any]:
    return WORKERS if request.param == "worker" else ROUTERS


def forged(kind: Kind[Any], claimed: str, how: str) -> bytes:
    """An announcement by somebody who does not know the token."""
    data = encode(kind.announce(worker(claimed) if kind is WORKERS else router(claimed), LONG_MS, 1))
    if how == "unsigned":
        return data
    if how == "another token":
        return sign(announcement_key("guess"), kind.name, data)
    signed = sign(KEY, kind.name, data)
    if how == "another address":
        return signed.replace(b"http://127.0.0.1:1", b"http://127.0.0.9:1")
    assert how == "another kind"
    return sign(KEY, "other", data)


@pytest.mark.parametrize("how", ["unsigned", "another token", "another address", "another kind"])
async def test_whoever_can_write_into_redis_cannot_make_anybody_a_worker_or_router(
    redis_url: str, kind: Kind[Any], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    entry = worker if kind is WORKERS else router
    watching, announcing = (RedisRegistry(redis_url, kind, key=KEY) for _ in range(2))
    with caplog.at_level(logging.WARNING), redis.Redis.from_url(redis_url) as foreign:
        foreign.set(kind.key_prefix + "forged", forged(kind, "forged", how), px=LONG_MS)
        assert await snapshot(watching) == []
        async with Watch(watching) as watch:
            assert await watch.next() == []
            foreign.publish(kind.channel, forged(kind, "forged", how))
            await announcing.announce(entry("ours"), LONG_MS)
            assert await watch.next() == [entry("ours")]
            foreign.publish(kind.channel, encode(kind.withdraw("ours", 9)))
            await announcing.announce(entry("ours", 3), LONG_MS)
            assert await watch.next() == [entry("ours", 3)], "nor is one of ours withdrawn"
    reason = "unsigned" if how == "unsigned" else "wrong_signature"
    assert watching.ignored[reason] >= 3 and watching.ignored["foreign"] == 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"ignored {kind.name} forged: its announcement is not signed with this router's internal token"
    for each in (watching, announcing):
        await each.close()


async def test_there_is_one_line_a_minute_with_the_number_of_strangers(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    registry = RedisRegistry(redis_url, WORKERS, key=KEY, clock=lambda: now_s[0])
    with caplog.at_level(logging.WARNING), redis.Redis.from_url(redis_url) as foreign:
        for number in range(5):
            foreign.set(f"{WORKERS.key_prefix}w{number}", forged(WORKERS, f"w{number}", "unsigned"), px=LONG_MS)
        for now_s[0] in (0.0, 59.0, 60.0, 61.0):
            assert await snapshot(registry) == []
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition("(")[2] for line in lines] == ["", "10 such announcements since the last line)"]
    assert registry.ignored["unsigned"] == 20
    await registry.close()


async def test_a_value_that_is_no_announcement_is_named_by_its_key(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = RedisRegistry(redis_url, WORKERS, key=KEY)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.set(WORKERS.key_prefix + "x\n\x1b[2J", "garbage", px=LONG_MS)
        assert await snapshot(registry) == []
    (record,) = caplog.records
    assert "at 'baton:worker:x\\n\\x1b[2J'" in record.getMessage()
    await registry.close()


async def test_a_reader_without_a_token_understands_signed_announcements(redis_url: str) -> None:
    signing, reading = RedisRegistry(redis_url, WORKERS, key=KEY), RedisRegistry(redis_url, WORKERS)
    await signing.announce(worker("a"), LONG_MS)
    assert await snapshot(reading) == [worker("a")]
    for each in (signing, reading):
        await each.close()


@pytest.mark.parametrize("data", [b"", b"{}", b'{"signature":"x"}', SIGNED[:-1], SIGNED + b" ", SIGNED[70:]])
def test_data_without_a_right_signature_is_not_trusted(data: bytes) -> None:
    with pytest.raises(UntrustedError):
        verify(KEY, "worker", data)
    if data != SIGNED[70:]:
        with pytest.raises(UntrustedError, match="unsigned"):
            verify(KEY, "worker", data)


def test_no_byte_of_a_signed_announcement_can_be_another() -> None:
    assert verify(KEY, "worker", SIGNED)
    for place in range(len(SIGNED)):
        before, after = SIGNED[:place], SIGNED[place + 1 :]
        for change in (before + bytes([SIGNED[place] ^ 1]) + after, before + after):
            with pytest.raises(UntrustedError):
                verify(KEY, "worker", change)


class TestReplay:
    """Of announcements that really were made, written into Redis again by somebody else."""

    def announced(self, sequence: int, running: int = 0) -> WorkerAnnouncement:
        return WorkerAnnouncement(id="a", ttl_ms=1000, sequence=sequence, entry=worker("a", running))

    def test_an_announcement_that_was_heard_already_prolongs_no_life(self) -> None:
        view: RegistryView[Any] = RegistryView()
        view.apply(self.announced(1), 0)
        view.apply(self.announced(2, running=3), 100)
        for now_ms in range(100, 1100, 100):
            for sequence in (1, 2):
                view.apply(self.announced(sequence), now_ms)
                view.merge([(self.announced(sequence), 86_400_000)], now_ms)
            assert view.alive() == [worker("a", 3)] and view.next_expiry_ms() == 1100
        view.merge([], 1100)
        assert view.alive() == []

    def test_an_old_farewell_sends_nobody_away(self) -> None:
        view: RegistryView[Any] = RegistryView()
        view.apply(self.announced(5), 0)
        view.apply(WorkerAnnouncement(id="a", sequence=5), 1)
        assert view.alive() == [worker("a")]
        view.apply(WorkerAnnouncement(id="a", sequence=6), 2)
        assert view.alive() == []

    @pytest.mark.parametrize("how", ["overdue", "withdrawn", "withdrawn before it was known"])
    def test_a_worker_that_went_is_not_brought_back_by_its_old_announcements(self, how: str) -> None:
        view: RegistryView[Any] = RegistryView()
        if how != "withdrawn before it was known":
            view.apply(self.announced(1), 0)
            view.apply(self.announced(2), 0)
        if how != "overdue":
            view.apply(WorkerAnnouncement(id="a", sequence=3), 0)
        view.merge([], 1000)
        assert view.alive() == []
        for now_ms in range(1000, 4000, 500):
            view.apply(self.announced(1), now_ms)
            view.merge([(self.announced(2), 86_400_000)], now_ms)
            assert view.alive() == []
        view.apply(self.announced(4, running=3), 4000)
        assert view.alive() == [worker("a", 3)], "it has only been silent"

    def test_the_number_of_remembered_workers_that_went_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(views, "MAX_KNOWN", 3)
        view: RegistryView[Any] = RegistryView()
        for name, sequence in (("b", 1), ("c", 1), ("b", 2), ("d", 1), ("e", 1)):
            view.apply(WorkerAnnouncement(id=name, sequence=sequence), 0)
        assert view._left == {"b": 2, "d": 1, "e": 1}

    def test_redis_cannot_say_that_an_announcement_holds_longer_than_it_says_itself(self) -> None:
        view: RegistryView[Any] = RegistryView()
        view.merge([(self.announced(1), 86_400_000)], 0)
        assert view.next_expiry_ms() == 1000
