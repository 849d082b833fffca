"""Which vLLM engines the NIXL agent is connected to, and when it tries again, without I/O.

All times are of one clock in ms, passed in. An engine is connected when its worker is met, or else when the first lease
on it is held. If its worker is not known, it is forgotten when it has had no lease for ``IDLE_MS``: engine ids are new
at every start of a worker, so old ones would never go.

A worker that is met does not say how many ranks its engine has, and must not be asked for one that does not exist. So
rank (0, 0), which every engine has, is connected then, and the others when the first lease names them.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, auto

from baton_serve.router.vllm.leases.remote_engine import RemoteEngine

#: Pauses in ms before an engine that could not be connected is tried again: the first, and the longest after doubling.
#: Both are well below the usual lease, and a silent side channel takes five seconds more for each try.
FIRST_PAUSE_MS = 250
LONGEST_PAUSE_MS = 4000
#: ms after the last lease of an engine until it is disconnected.
IDLE_MS = 300_000


class _State(Enum):
    WAITING = auto()
    CONNECTING = auto()
    CONNECTED = auto()


@dataclass(slots=True)
class _Connection:
    where: RemoteEngine
    #: WAITING: when to connect. CONNECTED: since when it was not needed, at the latest.
    since_ms: int
    state: _State = _State.WAITING
    pause_ms: int = FIRST_PAUSE_MS
    #: Whether its worker is known, so that it stays connected without leases.
    is_met: bool = False


class Connections:
    """The connections of one NIXL agent."""

    def __init__(self) -> None:
        self._all: dict[str, _Connection] = {}
        self._connected: set[str] = set()

    def __contains__(self, engine_id: object) -> bool:
        """Whether the engine is connected, or shall be."""
        return engine_id in self._all

    @property
    def connected(self) -> AbstractSet[str]:
        """Ids of the engines that can be sent notifications."""
        return self._connected

    def want(self, where: RemoteEngine, now_ms: int) -> None:
        """Have all ranks of this engine connected."""
        one = self._all.setdefault(where.engine_id, _Connection(where, now_ms))
        if one.where.ranks == where.ranks:
            return
        one.where = where
        if one.state is _State.CONNECTED:
            self._connected.discard(where.engine_id)
            one.state, one.since_ms = _State.WAITING, now_ms

    def meet(self, where: RemoteEngine, now_ms: int) -> None:
        """Have the first rank of this engine connected, and keep it so until it ``left``."""
        self._all.setdefault(where.engine_id, _Connection(where, now_ms)).is_met = True

    def left(self, engine_id: str) -> None:
        """Note that the worker of this engine is not known any more."""
        if (one := self._all.get(engine_id)) is not None:
            one.is_met = False

    def drop_unneeded(self, needed: Container[str]) -> None:
        """Forget the engines that are neither met nor needed, and not connected yet."""
        for engine_id, one in list(self._all.items()):
            if one.state is _State.WAITING and not (one.is_met or engine_id in needed):
                del self._all[engine_id]

    def take_due(self, needed: Container[str], now_ms: int) -> list[RemoteEngine]:
        """The engines to connect now; each is answered by ``made`` or ``lost``. Engines not needed are forgotten."""
        self.drop_unneeded(needed)
        due = [one for one in self._all.values() if one.state is _State.WAITING and one.since_ms <= now_ms]
        for one in due:
            one.state = _State.CONNECTING
        return [one.where for one in due]

    def take_idle(self, needed: Container[str], now_ms: int) -> list[str]:
        """Ids of the engines to disconnect now."""
        for engine_id in self._connected:
            if engine_id in needed or self._all[engine_id].is_met:
                self._all[engine_id].since_ms = now_ms
        idle = [key for key in self._connected if self._all[key].since_ms + IDLE_MS <= now_ms]
        for engine_id in idle:
            self.forget(engine_id)
        return idle

    def made(self, engine_id: str, num_ranks: int, now_ms: int) -> bool:
        """Note that so many ranks are connected; returns False if the engine has been forgotten meanwhile."""
        if (one := self._all.get(engine_id)) is None:
            return False
        if num_ranks != len(one.where.ranks):  # more of them have become known since
            self._connected.discard(engine_id)  # else the others would be counted as told
            one.state, one.since_ms = _State.WAITING, now_ms
            return True
        one.state, one.since_ms, one.pause_ms = _State.CONNECTED, now_ms, FIRST_PAUSE_MS
        self._connected.add(engine_id)
        return True

    def lost(self, engine_id: str, now_ms: int) -> None:
        """Note that the engine is not connected, or no longer. It is tried again after a pause."""
        self._connected.discard(engine_id)
        if (one := self._all.get(engine_id)) is not None:
            one.state, one.since_ms = _State.WAITING, now_ms + one.pause_ms
            one.pause_ms = min(2 * one.pause_ms, LONGEST_PAUSE_MS)

    def forget(self, engine_id: str) -> None:
        """Neither connect this engine nor count on its connection."""
        self._connected.discard(engine_id)
        self._all.pop(engine_id, None)

    def all_lost(self, now_ms: int) -> None:
        """Note that the agent has ended; a new one connects everything that is needed, at once."""
        self._connected.clear()
        for one in self._all.values():
            one.state, one.since_ms = _State.WAITING, now_ms

    def next_ms(self) -> int | None:
        """When ``take_due`` or ``take_idle`` next may have something; None: not before another call."""
        due = [one.since_ms for one in self._all.values() if one.state is _State.WAITING]
        idle = [self._all[engine_id].since_ms + IDLE_MS for engine_id in self._connected]
        return min([*due, *idle], default=None)
