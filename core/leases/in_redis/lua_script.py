"""Runs a Lua script, once or many times in one exchange. Every error of redis-py becomes an error of the port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import redis
from redis import exceptions

from baton_serve.core.leases.store import LeaseStoreError, LeaseStoreUnreachableError

#: No answer came: connection refused or lost, timeout, Redis still loading its data, a bare socket error.
UNREACHABLE: tuple[type[Exception], ...] = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)

#: The answer was an error (OOM, WRONGTYPE, NOSCRIPT, READONLY, no permission), or could not be parsed.
REFUSED: tuple[type[Exception], ...] = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    exceptions.IncorrectPolicyType,
    exceptions.ChildDeadlockedError,
)

#: What one run of a script is given: its keys, and its other arguments.
Call: TypeAlias = tuple[list[str], list[str | int]]


class LuaScript:
    """The script ``lua/NAME.lua`` on a client. Redis is sent its text only if it does not know it."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self._script = client.register_script(script_text(name))

    def run(self, keys: list[str], args: list[str | int]) -> list[Any]:
        """Run it once; returns nothing for an answer that is no list. Raises LeaseStoreError."""
        (answer,) = self.run_all([(keys, args)])
        if isinstance(answer, LeaseStoreError):
            raise answer
        return answer

    def run_all(self, calls: Sequence[Call]) -> list[list[Any] | LeaseStoreError]:
        """Run it for each of the calls, in one round trip; returns the answers, or errors, in the order of the calls.

        Raises LeaseStoreError if there are no answers, mostly because Redis cannot be reached.
        """
        answers = self._send(calls)
        if any(isinstance(answer, exceptions.NoScriptError) for answer in answers):
            with lease_store_errors():
                self._client.script_load(self._script.script)
            answers = self._send(calls)  # all of them: a script may be run twice
        return [_answer(answer) for answer in answers]

    def _send(self, calls: Sequence[Call]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for keys, args in calls:
            pipeline.evalsha(self._script.sha, len(keys), *keys, *args)
        with lease_store_errors():
            return pipeline.execute(raise_on_error=False)


@cache
def script_text(name: str) -> str:
    """The text of ``lua/common.lua``, and then of ``lua/NAME.lua``."""
    folder = resources.files("baton_serve.core.leases.in_redis") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", name))


def _answer(answer: Any) -> list[Any] | LeaseStoreError:
    if isinstance(answer, Exception):
        error = _as_lease_store_error(answer)
        error.__cause__ = answer
        return error
    return answer if isinstance(answer, list) else []


@contextmanager
def lease_store_errors() -> Iterator[None]:
    """Raise LeaseStoreError instead of any exception of redis-py inside the block."""
    try:
        yield
    except UNREACHABLE + REFUSED as error:
        raise _as_lease_store_error(error) from error


def _as_lease_store_error(error: Exception) -> LeaseStoreError:
    """The error of the port that stands for an error of redis-py."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, UNREACHABLE):
        return LeaseStoreUnreachableError(f"Redis cannot be reached: {text}")
    return LeaseStoreError(f"Redis answered an error: {text}")
