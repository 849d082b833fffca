"""The leases of a vLLM engine, as its scheduler's thread uses them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.leases.store import LeaseState, LeaseStore
from baton_serve.workers.vllm.leases import SchedulerLeases
from baton_serve.workers.vllm.loop_thread import LoopThread
from tests.kits.patience import PATIENCE_S

ENGINE = "5f3c0b1e-0e3a-4a53-9c55-5f0a9f6f4a10_dp0"
DURATION_MS = 60_000
#: A quarter of it, after which the keeper would ask by itself, is longer than any wait here.
LONG_MS = 600_000
POLL_S = 0.005


@pytest.fixture
def store() -> MemoryLeaseStore:
    return MemoryLeaseStore()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def leases(store: MemoryLeaseStore, thread: LoopThread) -> Iterator[SchedulerLeases]:
    leases = SchedulerLeases(store, thread, ENGINE, duration_ms=DURATION_MS, redis_grace_ms=0)
    leases.start()
    yield leases
    leases.stop()


def until(check: Callable[[], Any]) -> Any:
    """What ``check`` returns, once that is true: the scheduler asks in each of its steps."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if found := check():
            return found
        time.sleep(POLL_S)
    raise AssertionError("not in time")


def states(store: LeaseStore) -> dict[str, LeaseState]:
    return {one.lease_id: one.state for one in store.held(ENGINE)}


def granted(leases: SchedulerLeases, store: LeaseStore, *request_ids: str) -> list[str]:
    """The ids of new leases that the store has."""
    ids = [lease_id for request_id in request_ids if (lease_id := leases.grant(request_id)) is not None]
    until(lambda: states(store).keys() >= set(ids))
    return ids


def test_a_lease_that_a_router_releases_ends_at_once(leases: SchedulerLeases, store: MemoryLeaseStore) -> None:
    first, second = granted(leases, store, "a", "b")
    assert leases.take_ended() == {} and len(leases) == 2
    store.release(ENGINE, [second])
    assert until(leases.take_ended) == {"b": LeaseState.RELEASED}
    assert leases.take_ended() == {}
    assert states(store) == {first: LeaseState.HELD}


class Overtaken(RedisLeaseStore):
    """A grant is on its way until ``arrive`` is set."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.arrive = threading.Event()

    def grant(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[str]:
        assert self.arrive.wait(PATIENCE_S)
        return super().grant(engine_id, lease_ids, duration_ms)


def test_a_lease_whose_release_overtakes_its_grant_ends_at_once(redis_url: str, thread: LoopThread) -> None:
    store, router = Overtaken(redis_url), RedisLeaseStore(redis_url)
    leases = SchedulerLeases(store, thread, ENGINE, duration_ms=LONG_MS, redis_grace_ms=0)
    leases.start()
    lease_id = leases.grant("a")
    assert lease_id is not None
    router.release(ENGINE, [lease_id])
    assert leases.take_ended() == {}
    store.arrive.set()
    assert until(leases.take_ended) == {"a": LeaseState.RELEASED}
    assert states(router) == {}
    leases.stop()
    router.close()


def test_a_lease_that_d_has_read_is_done_in_the_store(leases: SchedulerLeases, store: MemoryLeaseStore) -> None:
    (lease_id,) = granted(leases, store, "a")
    leases.done("a")
    leases.done("a")
    until(lambda: not states(store))
    assert store.renew(ENGINE, [lease_id], DURATION_MS)[0].state is LeaseState.DONE
    assert leases.take_ended() == {}


def test_a_lease_that_is_read_at_once_is_done(leases: SchedulerLeases, store: MemoryLeaseStore) -> None:
    """Before the store has heard of it."""
    lease_id = leases.grant("a")
    assert lease_id is not None
    leases.done("a")
    until(lambda: store.renew(ENGINE, [lease_id], DURATION_MS)[0].state is LeaseState.DONE)


def test_a_lease_that_nobody_renews_expires(store: MemoryLeaseStore, thread: LoopThread) -> None:
    leases = SchedulerLeases(store, thread, ENGINE, duration_ms=100, redis_grace_ms=0)
    leases.start()
    leases.grant("a")
    assert until(leases.take_ended) == {"a": LeaseState.EXPIRED}
    leases.stop()


def test_a_request_that_has_ended_does_not_end_again(leases: SchedulerLeases, store: MemoryLeaseStore) -> None:
    """D has read while a router released."""
    (lease_id,) = granted(leases, store, "a")
    leases.done("a")
    store.release(ENGINE, [lease_id])
    until(lambda: not states(store))
    assert leases.take_ended() == {}


def test_the_end_of_the_engine_ends_its_leases(store: MemoryLeaseStore, thread: LoopThread) -> None:
    leases = SchedulerLeases(store, thread, ENGINE, duration_ms=DURATION_MS, redis_grace_ms=0)
    leases.start()
    ids = granted(leases, store, "a", "b")
    leases.stop()
    assert {one.state for one in store.renew(ENGINE, ids, DURATION_MS)} == {LeaseState.RELEASED}


class Broken(MemoryLeaseStore):
    """A store with a bug."""

    def reap(self, *_: Any) -> Any:
        raise RuntimeError("a bug")


def test_after_a_bug_leases_are_vllms_own(thread: LoopThread) -> None:
    leases = SchedulerLeases(Broken(), thread, ENGINE, duration_ms=100, redis_grace_ms=0)
    leases.start()
    leases.grant("a")
    assert until(leases.take_ended) == {"a": LeaseState.EXPIRED}
    assert leases.grant("b") is None
    leases.stop()
