"""Named lines at which a fault test can make a process die, stop or sleep.

``BATON_FAILPOINTS="worker.grant.before=kill@2,router.decode.chosen=sleep:500"`` arms some of the names in
``FAILPOINTS``. What an armed one does:

kill        SIGKILL to its own process, as a crash
stop        SIGSTOP to its own process, until a SIGCONT
sleep:MS    the thread at that line sleeps MS milliseconds, and with it the event loop that it runs

``@N`` means the N-th time only; without it, every time. A failpoint that is not armed costs a call and the test of one
global. The variable is read by ``arm``, once, when a process starts; a name or an action that does not exist is refused
there.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Mapping
from itertools import count
from typing import Final

logger = logging.getLogger(__name__)

VARIABLE: Final = "BATON_FAILPOINTS"
#: What follows a name: the action and ``@N``; a sleep of some hours at most.
_WHAT: Final = re.compile(r"(?:(kill|stop)|sleep:([0-9]{1,7}))(?:@([1-9][0-9]{0,8}))?")
#: Each name, with what is true at that line. The first part of a name is the kind of process that reaches it.
FAILPOINTS: Final[dict[str, str]] = {
    "worker.grant.before": "P has pinned the blocks of a hand-off; its keeper does not know the lease",
    "worker.grant.after": "P keeps the lease; neither the store nor the router has been told",
    "rank.read.before": "D has blocks for a read; nothing is posted",
    "rank.read.arrived": "all data of a read has arrived; the versions have not been asked for",
    "rank.read.compared": "the versions have been compared; P has not been notified",
    "router.prefill.answered": "P's answer is read; its lease is not tracked, its blocks are nobody's",
    "router.decode.chosen": "a D with room has been chosen; nothing is sent to it",
    "router.decode.first_byte": "D's first bytes are here, so P's blocks are read; the client has not seen them",
    "router.relay.event": "D's stream is under way, and the client has been sent one more piece of it",
    "router.exit": "a request has ended; nothing that it holds has been given back",
}


class FailpointError(ValueError):
    """``BATON_FAILPOINTS`` cannot be understood. The message is one line for people."""


class Armed:
    """What one failpoint does. ``on_hit``: at which hit; 0: at every hit."""

    def __init__(self, action: str, sleep_ms: float = 0.0, on_hit: int = 0) -> None:
        self.action = action
        self.sleep_ms = sleep_ms
        self.on_hit = on_hit
        self._hits = count(1)

    def __repr__(self) -> str:
        sleep = f":{self.sleep_ms:.0f}" if self.action == "sleep" else ""
        return f"{self.action}{sleep}@{self.on_hit}" if self.on_hit else f"{self.action}{sleep}"

    def come_by(self, name: str) -> None:
        """A thread has reached the line: act, if this hit counts."""
        if self.on_hit and next(self._hits) != self.on_hit:
            return
        logger.warning("failpoint %s: %s", name, self.action)
        if self.action == "sleep":
            time.sleep(self.sleep_ms / 1e3)
        else:
            os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


_armed: dict[str, Armed] | None = None


def hit(name: str) -> None:
    """The process has reached the line of ``name``: act as armed."""
    if _armed is not None and (armed := _armed.get(name)) is not None:
        armed.come_by(name)


def arm(environ: Mapping[str, str]) -> None:
    """Read the variable; call it once, before the process serves. Raises FailpointError."""
    global _armed
    _armed = parse(environ.get(VARIABLE, "")) or None
    if _armed:
        logger.warning("failpoints are armed: %s", _armed)


def parse(text: str) -> dict[str, Armed]:
    """The armed failpoints in the variable's text, by name. Raises FailpointError."""
    return dict(_parse_one(part.strip()) for part in text.split(",") if part.strip())


def _parse_one(part: str) -> tuple[str, Armed]:
    name, _, what = part.partition("=")
    if name not in FAILPOINTS:
        raise FailpointError(f"{VARIABLE}: there is no failpoint {name!r}; there are {', '.join(FAILPOINTS)}")
    said = _WHAT.fullmatch(what)
    if said is None:
        raise FailpointError(f"{VARIABLE}: {part!r} is none of kill, stop, sleep:MS, each with or without @N")
    action, sleep_ms, on_hit = said.groups()
    return name, Armed(action or "sleep", float(sleep_ms or 0), int(on_hit or 0))
