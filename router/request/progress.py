"""How far a request is in its states, and how long it was in each. Pure: time is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.request.states import TABLE, IllegalEvent, State

if TYPE_CHECKING:
    from baton_serve.router.request.states import Event


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
