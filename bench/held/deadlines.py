"""How close leases come to their deadlines, looked at in Redis many times a second."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from baton_serve.core.leases.in_redis.keys import leases_key

#: Seconds between two looks.
LOOK_S = 0.1
#: A lease with less time left than this, in ms, counts as late.
LATE_MS = 1000
#: KEYS: the sets of engines; ARGV 1: LATE_MS. Returns the least time in ms that a lease has left, and how many are
#: late. Released leases have negative scores.
_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local least, late = 1e9, 0
for _, key in ipairs(KEYS) do
  local first = redis.call('ZRANGEBYSCORE', key, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if first then
    least = math.min(least, first - now)
    late = late + redis.call('ZCOUNT', key, '(0', now + ARGV[1])
  end
end
return {least, late}
"""


@dataclass
class Closest:
    """The least time in ms that any lease had left at any look, and the most that were late at one look."""

    least_ms: int = 10**9
    most_late: int = 0


class DeadlineWatch:
    """Looks at the leases of these engines in a thread of its own, as long as it is open."""

    def __init__(self, url: str, engine_ids: Iterable[str]) -> None:
        self._redis = redis.Redis.from_url(url)
        self._keys = [leases_key(engine_id) for engine_id in engine_ids]
        self._look = self._redis.register_script(_SCRIPT)
        self._closest = Closest()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> Closest:
        """What was seen since the last call."""
        closest, self._closest = self._closest, Closest()
        return closest

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        while not self._is_closed.wait(LOOK_S):
            least_ms, num_late = self._look(keys=self._keys, args=[LATE_MS])
            seen = self._closest
            seen.least_ms, seen.most_late = min(seen.least_ms, least_ms), max(seen.most_late, num_late)
