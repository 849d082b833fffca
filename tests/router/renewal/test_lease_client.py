"""The router's shell: renews while the event loop is blocked, releases at once, outlives a Redis that dies or hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
import redis

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.leases.in_redis.keys import leases_key
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.leases.renewal import AlreadyTrackedError, EngineWork, TrackedLeases
from baton_serve.core.leases.store import (
    LeaseState,
    LeaseStatus,
    LeaseStore,
    LeaseStoreError,
    LeaseStoreUnreachableError,
)
from baton_serve.core.process.clock import monotonic_ms
from baton_serve.router.renewal import lease_client
from baton_serve.router.renewal.lease_client import LeaseClient
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import eventually

ENGINE = "e0"


SETTINGS = {"duration_ms": 60_000, "renew_interval_ms": 20, "redis_grace_ms": 60_000}


class WatchedStore(MemoryLeaseStore):
    """Tells a test when the n-th renewal happened."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals: list[Sequence[str]] = []
        self._renewed = threading.Condition()

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        answers = super().renew_all(leases, duration_ms)
        with self._renewed:
            self.renewals += leases.values()
            self._renewed.notify_all()
        return answers

    def wait_for(self, count: int) -> bool:
        """Blocks the calling thread until ``count`` more renewals."""
        with self._renewed:
            target = len(self.renewals) + count
            return self._renewed.wait_for(lambda: len(self.renewals) >= target, PATIENCE_S)


@asynccontextmanager
async def renewing(
    store: LeaseStore, clock: Callable[[], int] = monotonic_ms, **settings: int
) -> AsyncIterator[LeaseClient]:
    client = LeaseClient(store, **SETTINGS | settings, clock=clock)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    try:
        yield client
    finally:
        await client.close()
        store.close()
    assert errors == [], "a callback failed (``never`` does when it is called)"


def never(state: LeaseState) -> None:
    raise AssertionError("the lease was lost")


async def test_renewal_goes_on_while_the_event_loop_is_blocked() -> None:
    store = WatchedStore()
    store.grant(ENGINE, ["a"], 60_000)
    async with renewing(store) as client:
        client.track(ENGINE, "a", never)
        assert store.wait_for(5), "this call blocks the loop"
        client.untrack(ENGINE, "a")
        assert len(client) == 0


@pytest.mark.parametrize("read", [True, False])
async def test_a_lease_that_ended_is_reported_at_once_and_once(
    redis_url: str, caplog: pytest.LogCaptureFixture, read: bool
) -> None:
    store = RedisLeaseStore(redis_url)
    store.grant(ENGINE, ["a"], 60_000)
    ends: list[LeaseState] = []
    with caplog.at_level(logging.INFO):
        async with renewing(store) as client:
            client.track(ENGINE, "a", ends.append)
            if read:
                store.reap(ENGINE, [], ["a"])
            else:
                store.release(ENGINE, ["a"])
            await eventually(lambda: bool(ends))
            assert ends == [LeaseState.DONE if read else LeaseState.RELEASED]
            counts = client.counters()
            assert (counts["read"], counts["lost"]) == ((1, 0) if read else (0, 1)), "only an unread end is a loss"
            assert counts["answered_done" if read else "answered_released"] == 1
            assert client.remaining_ms(ENGINE, "a") is None
    assert ["is lost" in record.message for record in caplog.records] == ([] if read else [True])


async def test_a_lease_untracked_while_its_end_is_on_its_way_is_not_reported() -> None:
    store = WatchedStore()
    async with renewing(store, duration_ms=60_000) as client:
        store.reap(ENGINE, [], ["a"])
        client.track(ENGINE, "a", never)
        while not client.counters()["read"]:
            assert len(store.renewals) or store.wait_for(1)
        client.untrack(ENGINE, "a")
        await asyncio.sleep(0)


async def test_nobody_knows_how_long_a_lease_lasts_while_the_store_is_silent() -> None:
    now_ms = 0
    store = WitnessStore()
    store.alone = LeaseStoreError("away")
    client = LeaseClient(store, **SETTINGS | {"duration_ms": 6_000}, clock=lambda: now_ms)
    client.track(ENGINE, "a", never)
    assert client.remaining_ms(ENGINE, "a") == 6_000
    now_ms = 6_000
    assert client.remaining_ms(ENGINE, "a") is None, "not 0: P keeps the blocks for redis_grace_ms"
    await client.close()


async def test_the_first_renewal_extends_what_p_granted(redis_url: str) -> None:
    store = RedisLeaseStore(redis_url)
    store.grant(ENGINE, ["a"], 1_000)
    async with renewing(store) as client:
        client.track(ENGINE, "a", never)
        await eventually(lambda: store.held(ENGINE)[0].remaining_ms > 30_000)
        assert (client.remaining_ms(ENGINE, "a") or 0) > 30_000
        assert (client.tracks(ENGINE, "a"), client.tracks("other", "a")) == (True, False)
        with pytest.raises(AlreadyTrackedError):
            client.track(ENGINE, "a", never)
        with pytest.raises(ValueError, match="not an engine or lease id"):
            client.track(ENGINE, "a b", never)


async def test_a_release_wakes_p(redis_url: str) -> None:
    store = RedisLeaseStore(redis_url)
    store.grant(ENGINE, ["a"], 60_000)
    ear = store.wakeups(ENGINE)
    async with renewing(store) as client:
        client.track(ENGINE, "a", never)
        client.release(ENGINE, "a")
        assert await asyncio.to_thread(ear.wait, 20)
        assert store.reap(ENGINE, ["a"], [])[0].state is LeaseState.RELEASED
        await eventually(lambda: client.counters()["release_sent"] == 1)
        assert client.counters()["release_asked"] == 1
    ear.close()


async def test_closing_sends_the_releases_that_are_left(redis_url: str) -> None:
    store = RedisLeaseStore(redis_url)
    store.grant(ENGINE, ["a", "b"], 60_000)
    client = LeaseClient(store, **SETTINGS)
    client.release(ENGINE, "a")
    client.release(ENGINE, "b")
    await client.close()
    assert [status.state for status in store.held(ENGINE)] == [LeaseState.RELEASED] * 2
    store.close()


async def test_a_client_that_had_nothing_to_do_closes() -> None:
    async with renewing(MemoryLeaseStore()) as client:
        client.untrack(ENGINE, "never")
        assert client.remaining_ms(ENGINE, "never") is None


async def test_a_hung_redis_loses_nothing_and_releases_arrive_when_it_goes_on(own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url, socket_timeout_s=0.1)
    store.grant(ENGINE, ["a", "b"], 60_000)
    async with renewing(store) as client:
        client.track(ENGINE, "a", never)
        client.track(ENGINE, "b", never)
        os.kill(own_redis.pid, signal.SIGSTOP)
        await eventually(lambda: client.counters()["store_error"] >= 2)
        client.release(ENGINE, "b")
        assert len(client) == 1
        os.kill(own_redis.pid, signal.SIGCONT)
        await eventually(lambda: client.counters()["release_sent"] == 1)
        renewed = client.counters()["answered_held"]
        await eventually(lambda: client.counters()["answered_held"] > renewed)


async def test_an_emptied_redis_is_survived_when_p_grants_again(own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url)
    store.grant(ENGINE, ["a"], 60_000)
    async with renewing(store) as client:
        client.track(ENGINE, "a", never)
        own_redis.kill()
        own_redis.start()
        await eventually(lambda: client.counters()["answered_unknown"] >= 2)
        store.grant(ENGINE, ["a"], 1_000)
        await eventually(lambda: store.held(ENGINE)[0].remaining_ms > 30_000)


async def test_an_emptied_redis_and_a_p_that_is_gone_lose_the_lease(own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url)
    ends: list[LeaseState] = []
    async with renewing(store, duration_ms=400) as client:
        client.track(ENGINE, "a", ends.append)
        await eventually(lambda: ends == [LeaseState.UNKNOWN])
        assert client.counters()["answered_unknown"] >= 2


async def test_without_redis_a_lease_is_lost_after_the_grace(own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url)
    own_redis.kill()
    ends: list[LeaseState] = []
    async with renewing(store, duration_ms=100, redis_grace_ms=500) as client:
        client.track(ENGINE, "a", ends.append)
        await eventually(lambda: ends == [LeaseState.UNKNOWN])
        assert client.counters()["store_error"] > 1


async def test_one_engines_broken_keys_do_not_stop_another(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = RedisLeaseStore(redis_url)
    store.grant("good", ["a"], 60_000)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.set(leases_key("broken"), "x")
    async with renewing(store) as client:
        client.track("broken", "b", never)
        client.track("good", "a", never)
        await eventually(lambda: client.counters()["answered_held"] >= 3 and client.counters()["store_error"] >= 3)
    assert ["engine broken cannot be renewed" in record.getMessage() for record in caplog.records] == [True], "one line"
    with pytest.raises(LeaseStoreError):
        RedisLeaseStore(redis_url).held("broken")


async def test_engines_that_are_gone_do_not_keep_silence_over_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease_client, "MAX_COMPLAINTS", 1)
    async with renewing(RefusingStore()) as client:
        for engine_id in ("first", "second"):
            client.track(engine_id, "a", never)
            before = client.counters()["store_error"]
            await eventually(lambda before=before: client.counters()["store_error"] > before)
            client.untrack(engine_id, "a")
    lines = [record.getMessage().partition(" cannot be renewed")[0] for record in caplog.records]
    assert lines == ["the leases of engine first", "the leases of engine second"]


class WitnessStore(MemoryLeaseStore):
    """Knows which engines each exchange was about, and fails for some of them in the ways of ``failures``."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[tuple[str, list[str]]] = []
        self.failures: dict[str, Exception] = {}
        #: Raised for an exchange about one engine.
        self.alone: Exception | None = None
        #: Raised for every exchange about releases.
        self.takes_no_release: Exception | None = None
        #: Answered to every exchange about releases.
        self.refused: dict[str, LeaseStoreError] = {}

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        self.exchanges.append(("renew", list(leases)))
        if self.alone and len(leases) == 1:
            raise self.alone
        for engine_id in leases:
            if failure := self.failures.get(engine_id):
                raise failure
        return super().renew_all(leases, duration_ms)

    def release_all(self, leases: Mapping[str, Sequence[str]]) -> dict[str, LeaseStoreError]:
        self.exchanges.append(("release", list(leases)))
        if self.takes_no_release:
            raise self.takes_no_release
        return super().release_all(leases) | self.refused


class Watch:
    """A clock that stands still until it is set, so that all that was tracked meanwhile is due at the same time."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


ENGINES = [f"e{number}" for number in range(8)]


async def test_the_leases_of_all_engines_are_renewed_in_one_exchange() -> None:
    store, watch = WitnessStore(), Watch()
    async with renewing(store, clock=watch) as client:
        for engine_id in ENGINES:
            store.grant(engine_id, ["a"], 60_000)
            client.track(engine_id, "a", never)
        watch.now_ms += 5
        await eventually(lambda: client.counters()["answered_held"] == len(ENGINES))
        assert store.exchanges == [("renew", ENGINES)]
        with client._changed:  # so that the thread finds all of them at once
            for engine_id in ENGINES:
                client.release(engine_id, "a")
        await eventually(lambda: client.counters()["release_sent"] == len(ENGINES))
    assert store.exchanges == [("renew", ENGINES), ("release", ENGINES)]


async def test_a_bug_in_the_renewals_of_many_engines_repeats_no_release() -> None:
    store, watch = WitnessStore(), Watch()
    store.failures["e3"] = KeyError("bug")
    async with renewing(store, clock=watch) as client:
        for engine_id in ENGINES:
            store.grant(engine_id, ["kept", "left"], 60_000)
            client.track(engine_id, "kept", never)
        with client._changed:  # so that the thread finds all of it at once
            watch.now_ms += 5
            for engine_id in ENGINES:
                client.release(engine_id, "left")
        await eventually(lambda: client.counters()["answered_held"] == len(ENGINES) - 1)
        assert client.counters()["release_sent"] == len(ENGINES)
    assert [verb for verb, _ in store.exchanges] == ["release", "renew"] + ["renew"] * len(ENGINES)


async def test_when_the_store_is_silent_no_engine_is_asked_after_the_first() -> None:
    """Also after a bug, when each is asked alone: else each would wait for its own timeout."""
    store, watch = WitnessStore(), Watch()
    store.failures["e3"] = KeyError("bug")
    store.alone = LeaseStoreUnreachableError("away")
    async with renewing(store, clock=watch) as client:
        for engine_id in ENGINES:
            client.track(engine_id, "a", never)
        watch.now_ms += 5
        await eventually(lambda: client.counters()["store_error"] == 1)
        assert store.exchanges == [("renew", ENGINES), ("renew", ["e0"])]
        store.failures.clear()
        watch.now_ms += 20
        await eventually(lambda: client.counters()["answered_unknown"] == len(ENGINES))
        assert store.exchanges[2:] == [("renew", ENGINES)], "all of them were put off"


async def test_a_listener_hears_of_releases_that_a_silent_store_does_not_take() -> None:
    store, watch = WitnessStore(), Watch()
    heard: list[tuple[str, ...]] = []
    store.takes_no_release = LeaseStoreUnreachableError("away")
    async with renewing(store, clock=watch) as client:
        client.on_unsent.append(lambda engine_id, lease_ids: heard.append((engine_id, *lease_ids)))
        client.release(ENGINE, "a")
        await eventually(lambda: heard == [(ENGINE, "a")])
        client.release(ENGINE, "b")
        assert heard == [(ENGINE, "a"), (ENGINE, "b")], "at once, since the store is known to be silent"
        client.released_by_engine(ENGINE, ["a", "b"])
        client.released_by_engine("another", ["a"])
        assert client.counters()["release_direct"] == 2
        store.takes_no_release = None
        watch.now_ms += 20
        client.release("another", "c")
        await eventually(lambda: client.counters()["release_sent"] == 1)
        assert client.counters()["release_asked"] == 3
    assert store.exchanges == [("release", [ENGINE]), ("release", ["another"])]
    assert heard[2:] == [("another", "c")], "the store was still thought to be silent"


async def test_releases_that_come_while_the_store_hangs_are_told_when_the_call_has_failed() -> None:
    """Not when each of them has been tried as well; and not those that P has confirmed meanwhile."""
    store, hang, heard = WitnessStore(), threading.Event(), list[tuple[str, ...]]()
    release_all = store.release_all

    def hanging(leases: Mapping[str, Sequence[str]]) -> dict[str, LeaseStoreError]:
        release_all(leases)
        assert hang.wait(PATIENCE_S)
        raise LeaseStoreUnreachableError("away")

    store.release_all = hanging  # type: ignore[method-assign]
    async with renewing(store, clock=Watch()) as client:
        client.on_unsent.append(lambda engine_id, lease_ids: heard.append((engine_id, *lease_ids)))
        client.release(ENGINE, "confirmed")
        client.release(ENGINE, "a")
        await eventually(lambda: len(store.exchanges) == 1)
        client.release(ENGINE, "b")
        client.release("another", "c")
        client.released_by_engine(ENGINE, ["confirmed"])
        hang.set()
        await eventually(lambda: len(heard) >= 2)
        assert set(heard) == {("another", "c"), (ENGINE, "a", "b")}
        assert client.counters()["release_direct"] == 1
        client.released_by_engine(ENGINE, ["a", "b"])
        client.released_by_engine("another", ["c"])


async def test_a_listener_hears_of_releases_that_the_store_refuses() -> None:
    store = WitnessStore()
    heard: list[tuple[str, ...]] = []
    store.refused = {ENGINE: LeaseStoreError("its keys are broken")}
    async with renewing(store) as client:
        client.on_unsent.append(lambda engine_id, lease_ids: heard.append((engine_id, *lease_ids)))
        client.release(ENGINE, "a")
        client.release("good", "b")
        await eventually(lambda: (ENGINE, "a") in heard and client.counters()["release_sent"] == 1)
    assert ("good", "b") not in heard


async def test_a_release_that_is_refused_is_tried_again_and_keeps_nobody_waiting(redis_url: str) -> None:
    store = RedisLeaseStore(redis_url)
    store.grant("good", ["a", "b"], 60_000)
    with redis.Redis.from_url(redis_url) as foreign:
        foreign.set(leases_key("broken"), "x")
        async with renewing(store) as client:
            client.track("good", "b", never)
            client.release("broken", "a")
            client.release("good", "a")
            await eventually(lambda: client.counters()["store_error"] >= 2 and client.counters()["answered_held"] >= 1)
            assert client.counters()["release_sent"] == 1
            foreign.delete(leases_key("broken"))
            await eventually(lambda: client.counters()["release_sent"] == 2)


class RefusingStore(MemoryLeaseStore):
    """Answers, but cannot renew anything."""

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        return {engine_id: LeaseStoreError("its keys are broken") for engine_id in leases}


async def test_a_bug_in_one_engines_renewal_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store, watch = WitnessStore(), Watch()
    store.failures["buggy"] = KeyError("bug")
    store.grant(ENGINE, ["a"], 60_000)
    async with renewing(store, clock=watch) as client:
        client.track("buggy", "b", never)
        client.track(ENGINE, "a", never)
        for num_renewals in range(1, 4):
            watch.now_ms += 20
            await eventually(lambda num=num_renewals: client.counters()["answered_held"] == num)
        assert client.counters()["bug"] == 3
    assert ("renew", ["buggy", ENGINE]) in store.exchanges, "they were asked together"
    assert any("engine buggy met a bug" in record.getMessage() for record in caplog.records)
    assert all(record.exc_info for record in caplog.records)


async def test_a_thread_that_cannot_be_started_is_started_by_the_next_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    store = WatchedStore()
    store.grant(ENGINE, ["a", "b"], 60_000)
    async with renewing(store) as client:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            with pytest.raises(RuntimeError, match="new thread"):
                client.track(ENGINE, "a", never)
        assert len(client) == 0
        client.track(ENGINE, "b", never)
        await eventually(lambda: client.counters()["answered_held"] >= 1)


async def test_a_bug_in_the_thread_itself_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_serve.router.renewal.lease_client.RESTART_S", 0.01)
    take_work, bugs = TrackedLeases.take_work, ["bug"]

    def buggy(self: TrackedLeases, now_ms: int) -> list[EngineWork]:
        if bugs:
            raise KeyError(bugs.pop())
        return take_work(self, now_ms)

    monkeypatch.setattr(TrackedLeases, "take_work", buggy)
    store = WatchedStore()
    store.grant(ENGINE, ["a"], 60_000)
    async with renewing(store) as client:
        client.track(ENGINE, "a", never)
        await eventually(lambda: client.counters()["answered_held"] >= 2)
        assert client.counters()["bug"] == 1
