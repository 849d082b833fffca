"""One of the Lua scripts: run once, or many times in one exchange."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError

from baton_serve.core.leases.in_redis.errors import as_lease_store_error, lease_store_errors
from baton_serve.core.leases.store import LeaseStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis


class Call(NamedTuple):
    """What one run of a script is given."""

    keys: list[str]
    args: list[str | int]


class LuaScript:
    """The script ``lua/NAME.lua`` on a client. Redis is sent its text only if it does not know it."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self._script = client.register_script(script_text(name))

    def run(self, keys: list[str], args: list[str | int]) -> list[Any]:
        """Run it once; returns nothing for an answer that is no list. Raises LeaseStoreError."""
        (answer,) = self.run_all([Call(keys, args)])
        if isinstance(answer, LeaseStoreError):
            raise answer
        return answer

    def run_all(self, calls: Sequence[Call]) -> list[list[Any] | LeaseStoreError]:
        """Run it for each of the calls, in one round trip; returns the answers, or errors, in the order of the calls.

        Raises LeaseStoreError if there are no answers, mostly because Redis cannot be reached.
        """
        answers = self._send(calls)
        if any(isinstance(answer, NoScriptError) for answer in answers):
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
    """The text of ``lua/NAME.lua``, after that of ``lua/common.lua``."""
    folder = resources.files("baton_serve.core.leases.in_redis") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", name))


def _answer(answer: Any) -> list[Any] | LeaseStoreError:
    if isinstance(answer, Exception):
        error = as_lease_store_error(answer)
        error.__cause__ = answer
        return error
    return answer if isinstance(answer, list) else []
