"""One simulated request: what was asked, where it is, and what became of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_serve.router.placement import Prompt
    from baton_serve.router.pool import Reservation
    from baton_serve.router.request.attempts import Attempts
    from bench.scale.cluster.engines.prefill import PrefillEngine
    from bench.scale.load.job import Job


class End(StrEnum):
    """How a request ended."""

    DONE = "done"
    #: Answered 429: too many requests live or wait.
    REFUSED = "refused"
    #: A more urgent one took its place in a queue.
    DISPLACED = "displaced"
    #: No worker had room in time.
    NO_ROOM = "no room"
    #: Its legs failed, and it was not tried again.
    FAILED = "failed"
    #: Its router died.
    ROUTER_DIED = "router died"


class Request:
    """A request and the places it holds.

    ``leg`` grows whenever the request is sent or begins to wait: an answer to an earlier leg is then told from one to
    the present leg, and dropped.
    """

    __slots__ = (
        "attempts",
        "chosen",
        "computed",
        "end",
        "first_s",
        "job",
        "lease_id",
        "leg",
        "num_sent",
        "number",
        "prompt",
        "reservation",
        "second_s",
        "source",
        "wasted",
    )

    def __init__(self, number: int, job: Job, attempts: Attempts) -> None:
        self.number = number
        self.job = job
        self.prompt: Prompt = job.prompt()
        self.attempts = attempts
        self.leg = 0
        self.reservation: Reservation | None = None
        #: The place on D of a request whose D is chosen before prefill.
        self.chosen: Reservation | None = None
        self.source: PrefillEngine | None = None
        self.lease_id = ""
        #: Tokens that the client has.
        self.num_sent = 0
        #: Tokens that the last P computed, and all tokens that were computed in vain.
        self.computed = self.wasted = 0
        #: When the client got its first token, and D's first one; negative: not yet.
        self.first_s = self.second_s = -1.0
        self.end: End | None = None

    def __repr__(self) -> str:
        return f"<Request {self.number} leg {self.leg} {self.num_sent}/{self.job.num_new} tokens, {self.end}>"

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt, with those the client already has, if it begins again after them."""
        return self.job.num_tokens + self.num_sent

    @property
    def num_left(self) -> int:
        """Tokens that are still to come."""
        return self.job.num_new - self.num_sent
