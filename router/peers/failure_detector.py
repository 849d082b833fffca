"""Whether another router is alive: a table of states and events, without I/O. Times are the loop's clock in seconds.

When a link ends, its router may have died. If its port then refuses a connection, it is dead. A router that cannot be
reached at all may be paused, or behind a broken network: it is dead once its registry entry has expired too. A router
that answers is alive, whatever the registry says.

========  ======================================================================
state     what is known
========  ======================================================================
NEW       it has announced itself; no attempt to reach it has ended yet
UNMET     it was never reached: its address may be wrong, so a refused connection means nothing
LINKED    its link is open
LOST      the link broke, or its registry entry expired: a new link is being tried
SILENT    it cannot be reached
DEAD      final; it counts as a new router if it is announced again after its entry expired, or answers after all
========  ======================================================================
"""

from __future__ import annotations

from enum import StrEnum

from baton_serve.core.protocol.router import RouterRecord


class DetectorState(StrEnum):
    """What is known of another router."""

    NEW = "new"
    UNMET = "unmet"
    LINKED = "linked"
    LOST = "lost"
    SILENT = "silent"
    DEAD = "dead"


class DetectorEvent(StrEnum):
    """What can happen to another router, as seen from here."""

    #: It answers: a new link is open.
    OPENED = "opened"
    #: Its link ended.
    BROKE = "broke"
    #: Its internal port refuses connections.
    REFUSED = "refused"
    #: No connection, or no answer, in time.
    NO_ANSWER = "no_answer"
    #: Its registry entry expired, or was withdrawn.
    VANISHED = "vanished"


_S, _E = DetectorState, DetectorEvent
TABLE: dict[DetectorState, dict[DetectorEvent, DetectorState]] = {
    _S.NEW: {_E.OPENED: _S.LINKED, _E.REFUSED: _S.UNMET, _E.NO_ANSWER: _S.UNMET, _E.VANISHED: _S.NEW},
    _S.UNMET: {_E.OPENED: _S.LINKED, _E.REFUSED: _S.UNMET, _E.NO_ANSWER: _S.UNMET, _E.VANISHED: _S.DEAD},
    _S.LINKED: {_E.BROKE: _S.LOST, _E.VANISHED: _S.LOST},
    _S.LOST: {_E.OPENED: _S.LINKED, _E.REFUSED: _S.DEAD, _E.NO_ANSWER: _S.SILENT, _E.VANISHED: _S.LOST},
    _S.SILENT: {_E.OPENED: _S.LINKED, _E.REFUSED: _S.DEAD, _E.NO_ANSWER: _S.SILENT, _E.VANISHED: _S.DEAD},
    _S.DEAD: {_E.VANISHED: _S.DEAD},
}


class IllegalDetectorEvent(Exception):
    """The event cannot happen in that state; nothing has changed."""

    def __init__(self, state: DetectorState, event: DetectorEvent) -> None:
        super().__init__(f"{event} in state {state}")


class PeerRouter:
    """One other router. ``since_s``: when it entered its state."""

    def __init__(self, record: RouterRecord, now_s: float) -> None:
        self.record = record
        self.state = DetectorState.NEW
        self.since_s = now_s
        #: Whether the registry lists it.
        self.announced = True

    def __repr__(self) -> str:
        return f"<Peer {self.record.router_id} {self.state}{'' if self.announced else ' not announced'}>"

    def on(self, event: DetectorEvent, now_s: float) -> DetectorState:
        """Note an event and return the new state. Raises IllegalDetectorEvent, with nothing changed."""
        following = TABLE[self.state].get(event)
        if following is None:
            raise IllegalDetectorEvent(self.state, event)
        if event is DetectorEvent.VANISHED:
            self.announced = False
        elif not self.announced:  # its registry entry had expired before
            following = (
                TABLE[following].get(DetectorEvent.VANISHED, following) if _out_of_reach(following) else following
            )
        if following is not self.state:
            self.state, self.since_s = following, now_s
        return following

    @property
    def dead(self) -> bool:
        """Whether it has died or left."""
        return self.state is DetectorState.DEAD

    def seen(self) -> None:
        """Note that the registry lists it (again)."""
        self.announced = True


def _out_of_reach(state: DetectorState) -> bool:
    return state in {DetectorState.UNMET, DetectorState.SILENT}
