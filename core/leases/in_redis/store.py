"""Leases in Redis (6.2 or newer): one Lua script per verb, timed by the clock of the Redis server.

Every verb may be repeated, so a command that failed because Redis had closed the connection is tried once more. A
command that timed out is not repeated: with a Redis that hangs, the caller would wait twice as long.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import redis

from baton_serve.core.leases.ids import check_duration, check_id
from baton_serve.core.leases.in_redis.answers import RenewedBatch, listed_statuses, reaped_statuses, renewed_statuses
from baton_serve.core.leases.in_redis.keys import batches, leases_key, outcome_keys, wake_channel
from baton_serve.core.leases.in_redis.lua_script import Call, LuaScript
from baton_serve.core.leases.in_redis.wakeups import RedisWakeups
from baton_serve.core.leases.store import (
    DEAD_ENGINE_MARGIN_MS,
    OUTCOME_MEMORY_MS,
    LeaseStatus,
    LeaseStore,
    LeaseStoreError,
)
from baton_serve.core.redis_client import close, connect

logger = logging.getLogger(__name__)

#: Longest wait for an answer or a connection. Less than a renewal interval, so that a lease survives one timeout.
DEFAULT_SOCKET_TIMEOUT_S = 1.0
#: ``held`` lists at most this many leases. An engine has one for each request that it holds blocks for.
MAX_LISTED = 100_000
#: Warnings about members of an engine's set that are no leases are logged for this many engines at most.
MAX_COMPLAINTS = 100


class RedisLeaseStore(LeaseStore):
    """A ``LeaseStore``. Each thread that is inside a call uses a connection of its own, from a pool."""

    def __init__(self, url: str, *, socket_timeout_s: float = DEFAULT_SOCKET_TIMEOUT_S) -> None:
        """Does not connect before the first call. Raises ValueError if ``url`` is not a valid Redis URL."""
        self._socket_timeout_s = socket_timeout_s
        self._redis = connect(redis.Redis, url, socket_timeout_s, retries=1)
        # A subscription must not reconnect by itself: messages published before the new SUBSCRIBE would be missed.
        self._pubsub_client = connect(redis.Redis, url, socket_timeout_s, retries=0)
        self._complained: set[str] = set()
        self._grant = LuaScript(self._redis, "grant")
        self._renew = LuaScript(self._redis, "renew")
        self._outcomes = LuaScript(self._redis, "outcomes")
        self._release = LuaScript(self._redis, "release")
        self._reap = LuaScript(self._redis, "reap")
        self._held = LuaScript(self._redis, "held")

    def grant(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[str]:
        check_duration(duration_ms)
        refused: list[str] = []
        for batch in batches(lease_ids):
            keys = [leases_key(engine_id), *outcome_keys(engine_id, batch)]
            numbers = self._grant.run(keys, [duration_ms, DEAD_ENGINE_MARGIN_MS, *batch])
            refused += [batch[number - 1] for number in numbers]
        return refused

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        times = [check_duration(duration_ms), DEAD_ENGINE_MARGIN_MS]
        asked = [RenewedBatch(engine_id, batch) for engine_id, ids in leases.items() for batch in batches(ids)]
        calls: list[Call] = [
            ([leases_key(one.engine_id)], [*times, ",".join(map(check_id, one.lease_ids))]) for one in asked
        ]
        for batch, answer in zip(asked, self._renew.run_all(calls), strict=True):
            batch.take(answer)
        self._ask_outcomes([batch for batch in asked if batch.gone])
        return renewed_statuses(leases, asked)

    def _ask_outcomes(self, asked: Sequence[RenewedBatch]) -> None:
        calls: list[Call] = [
            (outcome_keys(batch.engine_id, [batch.lease_ids[number] for number in batch.gone]), []) for batch in asked
        ]
        try:
            answers = self._outcomes.run_all(calls)
        except LeaseStoreError as error:  # the leases of the other batches have been renewed all the same
            answers = [error] * len(asked)
        for batch, answer in zip(asked, answers, strict=True):
            batch.take_outcomes(answer)

    def release_all(self, leases: Mapping[str, Sequence[str]]) -> dict[str, LeaseStoreError]:
        asked = [(engine_id, batch) for engine_id, ids in leases.items() for batch in batches(ids)]
        times = [OUTCOME_MEMORY_MS, DEAD_ENGINE_MARGIN_MS]
        calls: list[Call] = [
            ([leases_key(engine_id), *outcome_keys(engine_id, ids)], [wake_channel(engine_id), *times, *ids])
            for engine_id, ids in asked
        ]
        answers = self._release.run_all(calls)
        return {
            engine_id: answer
            for (engine_id, _), answer in zip(asked, answers, strict=True)
            if isinstance(answer, LeaseStoreError)
        }

    def reap(self, engine_id: str, lease_ids: Sequence[str], done: Sequence[str]) -> list[LeaseStatus]:
        answers: list[LeaseStatus] = []
        # The script also runs without ids: it deletes leases that P has forgotten.
        pairs = list(zip_longest(batches(lease_ids), batches(done), fillvalue=())) or [((), ())]
        times = [OUTCOME_MEMORY_MS, DEAD_ENGINE_MARGIN_MS]
        for batch, done_batch in pairs:
            both = [*batch, *done_batch]
            keys = [leases_key(engine_id), *outcome_keys(engine_id, both)]
            answers += reaped_statuses(batch, self._reap.run(keys, [*times, len(batch), *both]))
        return answers

    def held(self, engine_id: str) -> list[LeaseStatus]:
        statuses, num_foreign = listed_statuses(self._held.run([leases_key(engine_id)], [MAX_LISTED]))
        # Once for each engine: every listing finds the same members.
        if num_foreign and engine_id not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(engine_id)
            logger.warning("ignored %d members of %s that are no leases", num_foreign, leases_key(engine_id))
        return statuses

    def wakeups(self, engine_id: str) -> RedisWakeups:
        return RedisWakeups(self._pubsub_client, wake_channel(engine_id), self._socket_timeout_s)

    def close(self) -> None:
        close(self._redis)
        close(self._pubsub_client)
