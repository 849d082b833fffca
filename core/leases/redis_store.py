"""Leases in Redis (6.2 or newer): one Lua script per verb, timed by the clock of the Redis server.

Every verb may be repeated, so a command that failed because Redis had closed the connection is tried once more. A
command that timed out is not repeated: with a Redis that hangs, the caller would wait twice as long.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import cache
from importlib import resources
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.leases.ids import check_duration, check_id
from core.leases.model import DEAD_ENGINE_MARGIN_MS, OUTCOME_MEMORY_MS
from core.leases.redis_errors import lease_store_errors
from core.leases.redis_wakeups import RedisWakeups
from core.leases.store import LeaseState, LeaseStatus, LeaseStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis.commands.core import Script

logger = logging.getLogger(__name__)

#: Longest wait for an answer or a connection. Less than a renewal interval, so that a lease survives one timeout.
DEFAULT_SOCKET_TIMEOUT_S = 1.0
#: Leases per script call. Redis serves no other client during a call (about 1 us per lease and command).
MAX_BATCH = 500
#: What ``renew.lua`` says instead of a remaining time.
_RELEASED, _NOT_THERE = -1, -2
#: ``held`` lists at most this many leases. An engine has one for each request that it holds blocks for.
MAX_LISTED = 100_000
#: Warnings about members of an engine's set that are no leases are logged for this many engines at most.
MAX_COMPLAINTS = 100


class RedisLeaseStore:
    """A ``LeaseStore``. Each thread that is inside a call uses a connection of its own, from a pool."""

    def __init__(self, url: str, *, socket_timeout_s: float = DEFAULT_SOCKET_TIMEOUT_S) -> None:
        """Does not connect before the first call. Raises ValueError if ``url`` is not a valid Redis URL."""
        self._socket_timeout_s = socket_timeout_s
        self._redis = connect(url, socket_timeout_s, Retry(NoBackoff(), 1, (redis.ConnectionError,)))
        # A subscription must not reconnect by itself: messages published before the new SUBSCRIBE would be missed.
        self._pubsub_client = connect(url, socket_timeout_s, Retry(NoBackoff(), 0, ()))
        self._complained: set[str] = set()
        self._grant = self._script("grant")
        self._renew = self._script("renew")
        self._outcomes = self._script("outcomes")
        self._release = self._script("release")
        self._reap = self._script("reap")
        self._held = self._script("held")

    def grant(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[str]:
        check_duration(duration_ms)
        refused: list[str] = []
        for batch in batches(lease_ids):
            keys = [leases_key(engine_id), *outcome_keys(engine_id, batch)]
            numbers = _run(self._grant, keys, [duration_ms, DEAD_ENGINE_MARGIN_MS, *batch])
            refused += [batch[number - 1] for number in numbers]
        return refused

    def renew(self, engine_id: str, lease_ids: Sequence[str], duration_ms: int) -> list[LeaseStatus]:
        check_duration(duration_ms)
        answers: list[LeaseStatus] = []
        for batch in batches(lease_ids):
            ids = ",".join(map(check_id, batch))
            answer = _run(self._renew, [leases_key(engine_id)], [duration_ms, DEAD_ENGINE_MARGIN_MS, ids])
            with _unreadable_answer_errors():
                answers += self._renewed(engine_id, batch, answer)
        return answers

    def _renewed(self, engine_id: str, batch: Sequence[str], answer: list[Any]) -> list[LeaseStatus]:
        """The answers to a renewal, in which only leases are named that have another time left than the others."""
        others = dict(zip(answer[1::2], answer[2::2], strict=True))
        statuses = [LeaseStatus(lease_id, LeaseState.HELD, answer[0]) for lease_id in batch]
        for number, remaining_ms in others.items():
            state = LeaseState.RELEASED if remaining_ms == _RELEASED else LeaseState.HELD
            statuses[number - 1] = LeaseStatus(batch[number - 1], state, max(0, remaining_ms))
        gone = [number for number, remaining_ms in others.items() if remaining_ms == _NOT_THERE]
        if gone:
            keys = outcome_keys(engine_id, [batch[number - 1] for number in gone])
            for number, outcome in zip(gone, _run(self._outcomes, keys, []), strict=True):
                statuses[number - 1] = _status(batch[number - 1], outcome, 0)
        return statuses

    def release(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        for batch in batches(lease_ids):
            keys = [leases_key(engine_id), *outcome_keys(engine_id, batch)]
            _run(self._release, keys, [wake_channel(engine_id), OUTCOME_MEMORY_MS, DEAD_ENGINE_MARGIN_MS, *batch])

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
        return _statuses(batch, _run(self._reap, keys, [*times, len(batch), *batch, *done]))

    def held(self, engine_id: str) -> list[LeaseStatus]:
        answer = _run(self._held, [leases_key(engine_id)], [MAX_LISTED])
        with _unreadable_answer_errors():
            rows = [*zip(answer[::3], answer[1::3], answer[2::3], strict=True)]
        ours = [row for row in rows if _is_lease(row[0])]
        if len(ours) < len(rows):
            self._complain(engine_id, len(rows) - len(ours))
        return [_status(lease_id.decode("ascii"), state, remaining) for lease_id, state, remaining in ours]

    def wakeups(self, engine_id: str) -> RedisWakeups:
        return RedisWakeups(self._pubsub_client, wake_channel(engine_id), self._socket_timeout_s)

    def close(self) -> None:
        self._redis.close()
        self._pubsub_client.close()

    def _complain(self, engine_id: str, num_foreign: int) -> None:
        """Log once for each engine: every listing finds the same members."""
        if engine_id not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(engine_id)
            logger.warning("ignored %d members of %s that are no leases", num_foreign, leases_key(engine_id))

    def _script(self, name: str) -> Script:
        return self._redis.register_script(script_text(name))


def leases_key(engine_id: str) -> str:
    """The key of the engine's sorted set. The braces put all keys of one engine into one cluster slot."""
    return f"baton:{{{check_id(engine_id)}}}:leases"


def outcome_keys(engine_id: str, lease_ids: Sequence[str]) -> list[str]:
    """The key under which the outcome of each lease is remembered."""
    prefix = f"baton:{{{check_id(engine_id)}}}:outcome:"
    return [prefix + check_id(lease_id) for lease_id in lease_ids]


def wake_channel(engine_id: str) -> str:
    """The channel on which releases of the engine's leases are published."""
    return f"baton:{{{check_id(engine_id)}}}:wake"


def batches(lease_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The ids, at most ``MAX_BATCH`` at a time."""
    for start in range(0, len(lease_ids), MAX_BATCH):
        yield lease_ids[start : start + MAX_BATCH]


def connect(url: str, socket_timeout_s: float, retry: Retry) -> redis.Redis:
    """A client with its own pool. It speaks RESP2, which suffices here and which proxies in front of Redis understand.

    Raises ValueError for an invalid URL, and for an unknown option in it, which redis-py would only find on connecting.
    """
    client = redis.Redis.from_url(
        url,
        socket_timeout=socket_timeout_s,
        socket_connect_timeout=socket_timeout_s,
        retry=retry,
        protocol=2,
    )
    pool = client.connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, redis.RedisError):
        raise ValueError("the URL of Redis has an option that does not exist") from None
    return client


@cache
def script_text(name: str) -> str:
    """The text of ``scripts/NAME.lua``, after that of ``scripts/common.lua``."""
    folder = resources.files("core.leases") / "scripts"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", name))


def _run(script: Script, keys: list[str], args: list[str | int]) -> list[Any]:
    """Run a script. Raises LeaseStoreError. ``Script`` sends EVALSHA, and the script's text only if the server does not
    know it.
    """
    with lease_store_errors():
        answer = script(keys=keys, args=args)
    return answer if isinstance(answer, list) else []


def _statuses(lease_ids: Sequence[str], answer: list[Any]) -> list[LeaseStatus]:
    with _unreadable_answer_errors():
        return [_status(*row) for row in zip(lease_ids, answer[::2], answer[1::2], strict=True)]


def _is_lease(member: bytes) -> bool:
    try:
        check_id(member.decode("ascii"))
    except ValueError:  # UnicodeDecodeError is a ValueError
        return False
    return True


def _status(lease_id: str, state: bytes, remaining_ms: int) -> LeaseStatus:
    return LeaseStatus(lease_id, LeaseState(state.decode("ascii")), int(remaining_ms))


@contextmanager
def _unreadable_answer_errors() -> Iterator[None]:
    """Raise LeaseStoreError if an answer cannot be read, because another program wrote under one of Baton's keys."""
    try:
        yield
    except (ValueError, AttributeError, TypeError, IndexError) as error:
        raise LeaseStoreError(f"Redis holds something that is not ours: {error}") from error
