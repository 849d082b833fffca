"""The states of a request in the router, as a table, and how long one was in each. Pure: no I/O, time is passed in.

QUEUED      waiting for a prefill worker with room
PREFILLING  sent to P, which has not answered
HELD        P's blocks are under a lease; waiting for a decode worker with room
READING     sent to D, which has not answered; if unstreamed, D is also not known to have read P's blocks
DECODING    D streams its answer to the client; unstreamed, D decodes and answers when it has finished
DONE, FAILED, ABORTED   over

An event that the table does not list raises IllegalEvent and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


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


class Event(StrEnum):
    """What can happen to a request."""

    PREFILL_SENT = "prefill_sent"
    #: P has answered and keeps its blocks.
    PREFILLED = "prefilled"
    #: The request is to be prefilled again: P failed, or the lease is gone, or D cannot use P's blocks.
    PREFILL_AGAIN = "prefill_again"
    #: Sent to D, or to a worker that prefills and decodes.
    DECODE_SENT = "decode_sent"
    #: Sent unstreamed to a worker that prefills and decodes: no blocks to read, and no answer before the end.
    DECODE_ALONE = "decode_alone"
    #: Unstreamed: D has read P's blocks, as the end of their lease shows; it answers later.
    READ = "read"
    #: D failed before its first byte; P still keeps its blocks.
    DECODE_AGAIN = "decode_again"
    #: D's first byte: it has read P's blocks.
    FIRST_BYTE = "first_byte"
    #: D failed during its stream; another worker continues after the tokens that the client has.
    STREAM_BROKE = "stream_broke"
    #: The client has been sent the whole answer.
    FINISHED = "finished"
    FAILED = "failed"
    #: Ended by the client's leaving, by an administrator, or by the deadline.
    ABORTED = "aborted"


class IllegalEvent(Exception):
    """The event cannot happen in this state; a bug of the caller. The state is unchanged."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.name} in state {state.name}")
        self.state = state
        self.event = event


_ENDS: Final = {Event.FAILED: State.FAILED, Event.ABORTED: State.ABORTED}

TABLE: Final[dict[State, dict[Event, State]]] = {
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
RETRIES: Final = frozenset({Event.PREFILL_AGAIN, Event.DECODE_AGAIN})

LIVE: Final = tuple(state for state, events in TABLE.items() if events)


class RequestProgress:
    """The state of one request, the seconds spent in each state, and how much of the answer is sent.

    ``now_s`` is of any monotonic clock.
    """

    __slots__ = ("_since_s", "num_chunks", "num_tokens", "spent_s", "started_s", "state")

    def __init__(self, now_s: float) -> None:
        self.state = State.QUEUED
        self.started_s = now_s
        self._since_s = now_s
        #: Seconds in each state that was left, summed over repetitions.
        self.spent_s: dict[State, float] = {}
        #: Tokens and chunks that the client has been sent; of an unstreamed answer they are not counted.
        self.num_tokens = 0
        self.num_chunks = 0

    def on(self, event: Event, now_s: float) -> State:
        """Move to the next state and return it. Raises IllegalEvent."""
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
        """Whether the request is over: no event is possible any more."""
        return not TABLE[self.state]

    def age_s(self, now_s: float) -> float:
        """Seconds since the request arrived."""
        return now_s - self.started_s

    def in_state_s(self, now_s: float) -> float:
        """Seconds since the request entered its present state."""
        return self.age_s(now_s) - sum(self.spent_s.values())

    def __repr__(self) -> str:
        spent = " ".join(f"{state}={seconds * 1e3:.1f}ms" for state, seconds in self.spent_s.items())
        return f"<RequestProgress {self.state} {spent}>"
