"""What only the Redis store can get wrong: errors of the library, a Redis that dies, hangs or holds foreign values."""

from __future__ import annotations

import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis import exceptions

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.leases.ids import MAX_DURATION_MS
from baton_serve.core.leases.in_redis.keys import MAX_BATCH, leases_key, outcome_keys
from baton_serve.core.leases.in_redis.lua_script import REFUSED, UNREACHABLE, lease_store_errors
from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.leases.store import (
    DEAD_ENGINE_MARGIN_MS,
    OUTCOME_MEMORY_MS,
    LeaseState,
    LeaseStatus,
    LeaseStoreError,
    LeaseStoreUnreachableError,
)

ENGINE = "e0"
VERBS: dict[str, Callable[[RedisLeaseStore], object]] = {
    "grant": lambda store: store.grant(ENGINE, ["a"], 1000),
    "renew": lambda store: store.renew(ENGINE, ["a"], 1000),
    "release": lambda store: store.release(ENGINE, ["a"]),
    "reap": lambda store: store.reap(ENGINE, ["a"], ["b"]),
    "held": lambda store: store.held(ENGINE),
    "wakeups": lambda store: store.wakeups(ENGINE),
}


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisLeaseStore]:
    lease_store = RedisLeaseStore(redis_url)
    yield lease_store
    lease_store.close()
    lease_store.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as connection:
        yield connection


LIBRARY_ERRORS = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", LIBRARY_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_library_is_mapped(kind: type[Exception]) -> None:
    assert issubclass(kind, REFUSED + UNREACHABLE)
    error = kind.__new__(kind)
    error.args = ("two\nlines",)
    with pytest.raises(LeaseStoreError) as caught, lease_store_errors():
        raise error
    assert isinstance(caught.value, LeaseStoreUnreachableError) == issubclass(kind, UNREACHABLE)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_errors_of_our_own_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), lease_store_errors():
        raise ZeroDivisionError


@pytest.mark.parametrize("verb", VERBS)
def test_every_call_without_a_redis_says_that_it_cannot_be_reached(verb: str, free_port: int) -> None:
    nobody = RedisLeaseStore(f"redis://127.0.0.1:{free_port}")
    with pytest.raises(LeaseStoreUnreachableError, match="cannot be reached"):
        VERBS[verb](nobody)
    nobody.close()


@pytest.mark.parametrize("verb", VERBS)
def test_a_hung_redis_is_a_timeout_and_then_works_again(verb: str, own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url, socket_timeout_s=0.5)  # long enough for a busy machine
    store.held(ENGINE)
    os.kill(own_redis.pid, signal.SIGSTOP)
    with pytest.raises(LeaseStoreUnreachableError):
        VERBS[verb](store)
    os.kill(own_redis.pid, signal.SIGCONT)
    patient = RedisLeaseStore(own_redis.url)
    VERBS[verb](patient)
    patient.close()
    store.close()


def test_a_restarted_redis_is_empty_and_knows_no_script_yet_the_next_call_works(own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url)
    store.grant(ENGINE, ["a"], 60_000)
    own_redis.kill()
    with pytest.raises(LeaseStoreUnreachableError):
        store.held(ENGINE)
    own_redis.start()
    assert store.reap(ENGINE, ["a"], [])[0].state is LeaseState.UNKNOWN
    store.grant(ENGINE, ["a"], 60_000)
    assert store.renew(ENGINE, ["a"], 60_000)[0].state is LeaseState.HELD
    store.close()


def test_a_flushed_script_cache_is_not_noticed(store: RedisLeaseStore, client: redis.Redis) -> None:
    store.grant(ENGINE, ["a"], 60_000)
    client.script_flush()
    assert store.renew(ENGINE, ["a"], 60_000)[0].state is LeaseState.HELD


@pytest.mark.parametrize("verb", ["grant", "renew", "release", "reap", "held"])
def test_a_key_of_another_type_is_an_error_of_a_store_that_was_reached(
    verb: str, store: RedisLeaseStore, client: redis.Redis
) -> None:
    client.set(leases_key(ENGINE), "not a set")
    with pytest.raises(LeaseStoreError, match="WRONGTYPE") as caught:
        VERBS[verb](store)
    assert not isinstance(caught.value, LeaseStoreUnreachableError)


@pytest.mark.parametrize("foreign", ["another type", "unknown"])
@pytest.mark.parametrize("verb", ["renew", "reap"])
def test_a_foreign_outcome_spoils_no_batch(
    verb: str, foreign: str, store: RedisLeaseStore, client: redis.Redis
) -> None:
    store.grant(ENGINE, ["b"], 60_000)
    key = outcome_keys(ENGINE, ["a"])[0]
    _ = client.set(key, b"\xff") if foreign == "unknown" else client.lpush(key, "x")
    ask = {"renew": lambda: store.renew(ENGINE, ["a", "b"], 60_000), "reap": lambda: store.reap(ENGINE, ["a", "b"], [])}
    assert [status.state for status in ask[verb]()] == [LeaseState.UNKNOWN, LeaseState.HELD]
    store.grant(ENGINE, ["a"], 60_000)
    assert len(store.held(ENGINE)) == 2


def test_broken_keys_of_one_engine_spoil_no_answers_about_others(store: RedisLeaseStore, client: redis.Redis) -> None:
    ids = [f"a{number}" for number in range(MAX_BATCH + 1)]
    for engine_id in ("first", "last"):
        store.grant(engine_id, ids, 60_000)
        store.reap(engine_id, [], ids[-1:])
    client.set(leases_key("broken"), "not a set")
    answers = store.renew_all({"first": ids, "broken": ids, "last": ids}, 60_000)
    refused = store.release_all({"first": ids[:1], "broken": ids, "last": ids[:1]})
    for error in (answers.pop("broken"), refused.pop("broken")):
        assert isinstance(error, LeaseStoreError)
        assert not isinstance(error, LeaseStoreUnreachableError)
        assert "WRONGTYPE" in str(error)
    assert refused == {}
    assert [store.held(engine_id)[0].state for engine_id in answers] == [LeaseState.RELEASED] * 2
    for answer in answers.values():
        assert isinstance(answer, list)
        assert [status.state for status in answer] == [LeaseState.HELD] * MAX_BATCH + [LeaseState.DONE]


def test_renewals_are_answered_although_the_outcomes_of_others_cannot_be_read(
    store: RedisLeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(calls: object) -> list[object]:
        raise LeaseStoreUnreachableError("away")

    store.grant("e1", ["a"], 60_000)
    store.grant("e2", ["a"], 60_000)
    monkeypatch.setattr(store._outcomes, "run_all", no_answer)
    answers = store.renew_all({"e1": ["a"], "e2": ["a", "gone"]}, 90_000)
    assert answers["e1"] == [LeaseStatus("a", LeaseState.HELD, 90_000)]
    assert isinstance(answers["e2"], LeaseStoreUnreachableError)


def test_many_calls_at_once_load_a_script_that_redis_has_forgotten(store: RedisLeaseStore, client: redis.Redis) -> None:
    engines = {f"e{number}": ["a"] for number in range(3)}
    for engine_id in engines:
        store.grant(engine_id, ["a"], 60_000)
    client.script_flush()
    assert {str(answer) for answer in store.release_all(engines).values()} == set()
    assert [store.held(engine_id)[0].state for engine_id in engines] == [LeaseState.RELEASED] * 3


def test_members_that_are_no_ids_are_left_out_with_one_line(
    store: RedisLeaseStore, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    store.grant(ENGINE, ["a"], 60_000)
    client.zadd(leases_key(ENGINE), {b"\xff": 5.0, "a b": 6.0, "x" * 100_000: 7.0})
    for _ in range(2):
        assert [status.lease_id for status in store.held(ENGINE)] == ["a"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("score", ["+inf", "1e300", "-inf", "9e15"])
def test_a_score_that_is_no_time_breaks_no_verb(score: str, store: RedisLeaseStore, client: redis.Redis) -> None:
    client.zadd(leases_key(ENGINE), {"foreign": score})
    store.grant(ENGINE, ["a", "foreign"], 60_000)
    for statuses in (store.renew(ENGINE, ["a", "foreign"], 60_000), store.held(ENGINE)):
        assert {status.lease_id: status.state for status in statuses}["a"] is LeaseState.HELD
        assert all(0 <= status.remaining_ms <= MAX_DURATION_MS for status in statuses)
    store.release(ENGINE, ["a"])
    assert store.reap(ENGINE, ["a", "foreign"], [])[0].state is LeaseState.RELEASED
    # -2: the last one went, and the set with it.
    assert (
        client.pttl(leases_key(ENGINE)) == -2
        or 0 < client.pttl(leases_key(ENGINE)) <= MAX_DURATION_MS + DEAD_ENGINE_MARGIN_MS
    )


def test_a_redis_out_of_memory_is_an_error_of_the_store(own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url)
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory", 1)
    with pytest.raises(LeaseStoreError, match="OOM"):
        store.grant(ENGINE, ["a"], 1000)
    store.close()


def test_every_key_has_an_expiry_and_one_cluster_slot(store: RedisLeaseStore, client: redis.Redis) -> None:
    store.grant(ENGINE, ["a", "b", "c"], 1000)
    store.release(ENGINE, ["a", "never"])
    store.reap(ENGINE, ["a"], ["b"])
    keys = [key.decode() for key in client.scan_iter()]
    outcomes = [f"baton:{{e0}}:outcome:{lease_id}" for lease_id in ("a", "b", "never")]
    assert sorted(keys) == ["baton:{e0}:leases", *outcomes]
    assert all(client.pttl(key) > 0 for key in keys)
    assert all(client.pttl(key) <= OUTCOME_MEMORY_MS for key in outcomes)


def test_deadlines_are_times_of_the_redis_servers_clock(store: RedisLeaseStore, client: redis.Redis) -> None:
    store.grant(ENGINE, ["a"], 1000)
    before = client.time()[0] * 1000
    assert before - 2000 < (client.zscore(leases_key(ENGINE), "a") or 0) - 1000 <= before + 2000


def test_a_lost_ear_says_so_and_a_new_one_hears(own_redis: EmbeddedRedis) -> None:
    store = RedisLeaseStore(own_redis.url)
    ear = store.wakeups(ENGINE)
    failed = threading.Event()

    def listen() -> None:
        with pytest.raises(LeaseStoreUnreachableError):
            ear.wait(60)
        failed.set()

    thread = threading.Thread(target=listen)
    thread.start()
    own_redis.kill()
    assert failed.wait(10)
    thread.join()
    ear.close()
    own_redis.start()
    ear = store.wakeups(ENGINE)
    store.grant(ENGINE, ["a"], 60_000)
    store.release(ENGINE, ["a"])
    assert ear.wait(10)
    ear.close()
    store.close()


def test_an_ear_leaves_no_connection_and_no_descriptor(store: RedisLeaseStore, client: redis.Redis) -> None:
    store.held(ENGINE)
    descriptors = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        ear = store.wakeups(ENGINE)
        assert not ear.wait(0)
        ear.close()
    assert set(Path("/proc/self/fd").iterdir()) == descriptors
    assert client.pubsub_numsub("baton:{e0}:wake") == [(b"baton:{e0}:wake", 0)]


@pytest.mark.parametrize("num_leases", [1, 10, MAX_BATCH])
def test_a_renewal_is_a_few_commands_however_many_leases_it_has(
    num_leases: int, store: RedisLeaseStore, client: redis.Redis
) -> None:
    ids = [f"a{number}" for number in range(num_leases)]
    store.grant(ENGINE, ids, 1000)
    store.renew(ENGINE, ids, 2000)  # Redis knows the script now
    client.config_resetstat()
    answers = store.renew(ENGINE, ids, 3000)
    assert {(answer.state, answer.remaining_ms) for answer in answers} == {(LeaseState.HELD, 3000)}
    counted = {name.removeprefix("cmdstat_"): row["calls"] for name, row in client.info("commandstats").items()}
    counted.pop("config|resetstat", None)
    counted.pop("config", None)
    assert counted.pop("evalsha") == 1
    assert set(counted) == {"time", "zmscore", "zadd", "zrevrange", "pexpireat"}
    assert set(counted.values()) == {1}
