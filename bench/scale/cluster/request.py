"""One simulated request: what was asked, where it is, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from baton_serve.router.placement import Prompt
from baton_serve.router.pool import Reservation
from baton_serve.router.request.attempts import Attempts
from bench.scale.cluster.kept import KeptBlocks
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


@dataclass(eq=False, slots=True)
class Request:
    """A request and the places it holds."""

    number: int
    job: Job
    prompt: Prompt
    attempts: Attempts
    #: Grows whenever the request is sent or begins to wait: an answer to an earlier leg is then told from one to the
    #: present leg, and dropped.
    leg: int = 0
    reservation: Reservation | None = None
    #: The place on D of a request whose D is chosen before prefill.
    chosen: Reservation | None = None
    #: Where its blocks are, and the lease that keeps them.
    source: KeptBlocks | None = None
    lease_id: str = ""
    #: Tokens that the client has.
    num_sent: int = 0
    #: Tokens that the last P computed, and all tokens that were computed in vain.
    computed: int = 0
    wasted: int = 0
    #: When the client got its first token, and D's first one; negative: not yet.
    first_s: float = -1.0
    second_s: float = -1.0
    end: End | None = None

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


class Asker(Protocol):
    """What engines tell the router that asked them, about the present leg of a request unless it says otherwise."""

    def prefilled(self, request: Request, kept: KeptBlocks) -> None:
        """P has computed the prompt, can keep its blocks, and its answer is on its way."""

    def reads(self, request: Request, num_tokens: int) -> None:
        """D begins to read that many tokens' blocks; the others are in its cache."""

    def has_read(self, request: Request) -> bool:
        """D has read all. Returns False if it was in vain: P had given up the blocks, or is dead."""

    def first_byte(self, request: Request, leg: int) -> None:
        """D has sent its first token; ``leg`` may be over."""

    def finished(self, request: Request) -> None:
        """D has sent the last token."""

    def lost(self, request: Request, leg: int, died: str) -> None:
        """The engine ``died`` with a leg of the request, which may be over."""
