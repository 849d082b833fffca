"""What is noted during a run. Times are seconds of ``time.monotonic``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True)
class Question:
    """One question. ``body`` lacks ``model``, ``stream`` and ``stream_options``, which each client adds."""

    number: int
    chat: bool
    body: dict[str, Any]

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


@dataclass(frozen=True)
class TokenLogprob:
    """One sampled token as clients see it. ``offset`` is in characters of the text; chats have none."""

    token: str
    logprob: float
    offset: int | None = None
    #: Log probabilities of the likeliest tokens, by their text, or by their bytes in hex.
    top: dict[str, float] = field(default_factory=dict)


class AnswerError(Exception):
    """What a client got is no answer in OpenAI's shape."""


@dataclass
class ClientAnswer:
    """An answer as a client has it: the whole, or what has come so far."""

    text: str = ""
    finish_reason: str | None = None
    #: Tokens of the prompt and of the completion.
    num_tokens: tuple[int, int] | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Ending(StrEnum):
    """How an attempt ended, as the client saw it."""

    DONE = "done"
    #: The client got an error, before the answer or inside it.
    ERROR = "error"
    #: The client left, as it had meant to.
    LEFT = "left"
    #: The connection broke.
    BROKEN = "broken"
    #: Nothing came for too long.
    HUNG = "hung"


@dataclass
class Attempt:
    """One request of one client."""

    question: int
    router: str
    streamed: bool
    began_s: float
    ended_s: float = 0.0
    request_id: str = ""
    status: int = 0
    ending: Ending = Ending.HUNG
    answer: ClientAnswer = field(default_factory=ClientAnswer)
    #: OpenAI's error object, or what came in its place.
    error: Any = None
    #: Ids of the workers whose deaths its router has counted for it; known only after ``router_log.note_deaths``.
    deaths: frozenset[str] = frozenset()


@dataclass
class Fault:
    """Something that was done to a process.

    ``what`` is kill, rank (one of its ranks was killed), stop, empty (Redis forgot everything) or failpoint.
    """

    what: str
    kind: str
    name: str
    began_s: float
    #: When everything was as before; infinite until then.
    ended_s: float = float("inf")
    detail: str = ""
    #: A worker's id, by which routers tell this start of it from others.
    worker_id: str = ""

    @property
    def is_kill(self) -> bool:
        """Whether a process got a SIGKILL."""
        return self.what in {"kill", "rank", "failpoint"}

    def __str__(self) -> str:
        return f"{self.what} {self.name}{f' ({self.detail})' if self.detail else ''}"
