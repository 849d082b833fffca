"""Leases in Redis (6.2 or newer): one Lua script per verb, timed by the clock of the Redis server.

Every verb may be repeated, so a command that failed because Redis had closed the connection is tried once more. A
command that timed out is not repeated: with a Redis that hangs, the caller would wait twice as long.
"""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from baton_serve.core.leases.ids import check_duration, check_id
from baton_serve.core.leases.in_redis.answers import RenewedBatch, listed_statuses, reaped_statuses, renewed_statuses
from baton_serve.core.leases.in_redis.keys import batches, leases_key, outcome_keys, wake_channel
from baton_serve.core.leases.in_redis.lua_script import Call, LuaScript
from baton_serve.core.leases.in_redis.wakeups import RedisWakeups
from baton_serve.core.leases.model import DEAD_ENGINE_MARGIN_MS, OUTCOME_MEMORY_MS
from baton_serve.core.leases.store import LeaseStoreError
from baton_serve.core.redis_client import close, connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton_serve.core.leases.store import LeaseStatus

logger = logging.getLogger(__name__)

#: Longest wait for an answer or a connection. Less than a renewal interval, so that a lease survives one timeout.
DEFAULT_SOCKET_TIMEOUT_S = 1.0
#: ``held`` lists at most this many leases. An engine has one for each request that it holds blocks for.
MAX_LISTED = 100_000
#: Warnings about members of an engine's set that are no leases are logged for this many engines at most.
MAX_COMPLAINTS = 100


class RedisLeaseStore:
    """A ``LeaseStore``. Each thread that is inside a call uses a connection of its own, from a pool."""

    def __init__(self, url: str, *, socket_timeout_s: float = DEFAULT_SOCKET_TIMEOUT_S) -> None:
        """Does not connect before the first call. Raises ValueError if ``url`` is not a valid Redis URL."""
        self._socket_timeout_s = socket_timeout_s
        self._redis = connect(redis.Redis, url, socket_timeout_s, Retry(NoBackoff(), 1, (redis.ConnectionError,)))
        # A subscription must not reconnect by itself: messages published before the new SUBSCRIBE would be missed.
        self._pubsub_client = connect(redis.Redis, url, socket_timeout_s, Retry(NoBackoff(), 0, ()))
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

    def renew(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[LeaseStatus]:
        answer = self.renew_all({engine_id: lease_ids}, duration_ms)[engine_id]
        if isinstance(answer, LeaseStoreError):
            raise answer
        return answer

    def renew_all(
        self, leases: Mapping[str, Sequence[str]], duration_ms: int
    ) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
        times = [check_duration(duration_ms), DEAD_ENGINE_MARGIN_MS]
        asked = [RenewedBatch(engine_id, batch) for engine_id, ids in leases.items() for batch in batches(ids)]
        calls = [Call([leases_key(one.engine_id)], [*times, ",".join(map(check_id, one.lease_ids))]) for one in asked]
        for batch, answer in zip(asked, self._renew.run_all(calls), strict=True):
            batch.take(answer)
        self._ask_outcomes([batch for batch in asked if batch.gone])
        return renewed_statuses(leases, asked)

    def _ask_outcomes(self, asked: Sequence[RenewedBatch]) -> None:
        calls = [Call(outcome_keys(batch.engine_id, batch.gone_ids), []) for batch in asked]
        try:
            answers = self._outcomes.run_all(calls)
        except LeaseStoreError as error:  # the leases of the other batches have been renewed all the same
            answers = [error] * len(asked)
        for batch, answer in zip(asked, answers, strict=True):
            batch.take_outcomes(answer)

    def release(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        for error in self.release_all({engine_id: lease_ids}).values():
            raise error

    def release_all(self, leases: Mapping[str, Sequence[str]]) -> dict[str, LeaseStoreError]:
        asked = [(engine_id, batch) for engine_id, ids in leases.items() for batch in batches(ids)]
        answers = self._release.run_all([_release_call(engine_id, batch) for engine_id, batch in asked])
        return {
            engine_id: answer
            for (engine_id, _), answer in zip(asked, answers, strict=True)
            if isinstance(answer, LeaseStoreError)
        }

    def reap(self, engine_id: str, lease_ids: Sequence[str], done: Sequence[str]) -> list[LeaseStatus]:
        answers: list[LeaseStatus] = []
        # The script also runs without ids: it deletes leases that P has forgotten.
        pairs = list(zip_longest(batches(lease_ids), batches(done), fillvalue=())) or [((), ())]
        for batch, done_batch in pairs:
            answers += self._reap_batch(engine_id, batch, done_batch)
        return answers

    def _reap_batch(self, engine_id: str, batch: Sequence[str], done: Sequence[str]) -> list[LeaseStatus]:
        keys = [leases_key(engine_id), *outcome_keys(engine_id, [*batch, *done])]
        times = [OUTCOME_MEMORY_MS, DEAD_ENGINE_MARGIN_MS]
        return reaped_statuses(batch, self._reap.run(keys, [*times, len(batch), *batch, *done]))

    def held(self, engine_id: str) -> list[LeaseStatus]:
        statuses, num_foreign = listed_statuses(self._held.run([leases_key(engine_id)], [MAX_LISTED]))
        if num_foreign:
            self._complain(engine_id, num_foreign)
        return statuses

    def wakeups(self, engine_id: str) -> RedisWakeups:
        return RedisWakeups(self._pubsub_client, wake_channel(engine_id), self._socket_timeout_s)

    def close(self) -> None:
        close(self._redis)
        close(self._pubsub_client)

    def _complain(self, engine_id: str, num_foreign: int) -> None:
        """Log once for each engine: every listing finds the same members."""
        if engine_id not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(engine_id)
            logger.warning("ignored %d members of %s that are no leases", num_foreign, leases_key(engine_id))


def _release_call(engine_id: str, lease_ids: Sequence[str]) -> Call:
    keys = [leases_key(engine_id), *outcome_keys(engine_id, lease_ids)]
    return Call(keys, [wake_channel(engine_id), OUTCOME_MEMORY_MS, DEAD_ENGINE_MARGIN_MS, *lease_ids])
