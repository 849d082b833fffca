"""The states of a request in the router, as one table. Pure: no I/O, time is passed in.

QUEUED      waiting for a prefill worker with room
PREFILLING  sent to P, which has not answered
HELD        P's blocks are under a lease; waiting for a decode worker with room
READING     sent to D, which has not answered; unstreamed: and is not known to have read P's blocks
DECODING    D answers; its bytes go to the client. Unstreamed, D computes, and answers once it has decoded everything
DONE, FAILED, ABORTED   over

An event that the table does not list raises IllegalEvent and changes nothing.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class State(StrEnum):
    """Where a request is."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    HELD = "held"
    READING = "reading"
    DECODING = "decoding"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"


class Event(Enum):
    """What can happen to a request."""

    PREFILL_SENT = "prefill_sent"
    #: P has answered; its blocks wait.
    PREFILLED = "prefilled"
    #: The request is to be prefilled again: P failed, or the lease is gone, or D cannot use P's blocks.
    PREFILL_AGAIN = "prefill_again"
    #: Sent to D, or to a worker that does both.
    DECODE_SENT = "decode_sent"
    #: Sent to a worker that does both, unstreamed: there is nothing to read, and nothing comes back before the end.
    DECODE_ALONE = "decode_alone"
    #: Unstreamed: D has read P's blocks, as the end of their lease tells; it answers later.
    READ = "read"
    #: D failed before its first byte; P's blocks still wait.
    DECODE_AGAIN = "decode_again"
    #: D's first byte: it has read P's blocks.
    FIRST_BYTE = "first_byte"
    #: D failed in its stream; the client has tokens, after which another worker continues.
    STREAM_BROKE = "stream_broke"
    #: The whole answer is with the client.
    FINISHED = "finished"
    FAILED = "failed"
    #: Client gone, admin, deadline.
    ABORTED = "aborted"


class IllegalEvent(Exception):
    """The event cannot happen in this state; a bug of the caller. The state is unchanged."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.name} in state {state.name}")
        self.state = state
        self.event = event


_ENDS = {Event.FAILED: State.FAILED, Event.ABORTED: State.ABORTED}

TABLE: dict[State, dict[Event, State]] = {
    State.QUEUED: {
        Event.PREFILL_SENT: State.PREFILLING,
        Event.DECODE_SENT: State.READING,
        Event.DECODE_ALONE: State.DECODING,
        **_ENDS,
    },
    State.PREFILLING: {
        Event.PREFILLED: State.HELD,
        Event.PREFILL_AGAIN: State.QUEUED,
        Event.FINISHED: State.DONE,
        **_ENDS,
    },
    State.HELD: {
        Event.DECODE_SENT: State.READING,
        Event.DECODE_ALONE: State.DECODING,
        Event.PREFILL_AGAIN: State.QUEUED,
        **_ENDS,
    },
    State.READING: {
        Event.READ: State.DECODING,
        Event.FIRST_BYTE: State.DECODING,
        Event.DECODE_AGAIN: State.HELD,
        Event.PREFILL_AGAIN: State.QUEUED,
        **_ENDS,
    },
    State.DECODING: {
        Event.FINISHED: State.DONE,
        Event.STREAM_BROKE: State.QUEUED,
        # Unstreamed only:
        Event.DECODE_AGAIN: State.HELD,
        Event.PREFILL_AGAIN: State.QUEUED,
        **_ENDS,
    },
    State.DONE: {},
    State.FAILED: {},
    State.ABORTED: {},
}

#: Events of a leg that is tried again, because it failed or P's blocks are gone.
RETRIES = frozenset({Event.PREFILL_AGAIN, Event.DECODE_AGAIN})

LIVE = tuple(state for state, events in TABLE.items() if events)


class RequestProgress:
    """The state of one request and the seconds it spent in each. ``now_s`` is any monotonic clock."""

    __slots__ = ("_since_s", "spent_s", "started_s", "state")

    def __init__(self, now_s: float) -> None:
        self.state = State.QUEUED
        self.started_s = now_s
        self._since_s = now_s
        #: Seconds in each state that was left, summed over repetitions.
        self.spent_s: dict[State, float] = {}

    def on(self, event: Event, now_s: float) -> State:
        """Go to the next state; raises IllegalEvent."""
        state = self.state
        following = TABLE[state].get(event)
        if following is None:
            raise IllegalEvent(state, event)
        self.spent_s[state] = self.spent_s.get(state, 0.0) + now_s - self._since_s
        self._since_s = now_s
        self.state = following
        return following

    @property
    def over(self) -> bool:
        """No event is possible any more."""
        return not TABLE[self.state]

    def age_s(self, now_s: float) -> float:
        """Seconds since the request came."""
        return now_s - self.started_s

    def in_state_s(self, now_s: float) -> float:
        """Seconds since the request came into its state."""
        return self.age_s(now_s) - sum(self.spent_s.values())

    def __repr__(self) -> str:
        spent = " ".join(f"{state}={seconds * 1e3:.1f}ms" for state, seconds in self.spent_s.items())
        return f"<RequestProgress {self.state} {spent}>"
