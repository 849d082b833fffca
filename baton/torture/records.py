"""What is noted during a run. Times are seconds of ``time.monotonic``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: More choices than any question asks for.
MAX_CHOICES = 64


@dataclass(frozen=True)
class Question:
    """One question. ``body`` lacks ``model``, ``stream`` and ``stream_options``, which each client adds."""

    number: int
    chat: bool
    body: dict[str, Any]

    @property
    def may_stream(self) -> bool:
        """Whether its answer may be streamed: one with logprobs of the prompt may not."""
        return "prompt_logprobs" not in self.body

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


@dataclass(frozen=True)
class TokenLogprob:
    """One token as clients see it. ``offset`` is in characters of the text; chats have none.

    ``logprob`` is None for the first token of a prompt, which has none.
    """

    token: str
    logprob: float | None
    offset: int | None = None
    #: Log probabilities of the likeliest tokens, by their text, or by their bytes in hex.
    top: dict[str, float] = field(default_factory=dict)


class AnswerError(Exception):
    """The client got something that is no answer in OpenAI's shape."""


@dataclass
class ClientAnswer:
    """An answer as a client has it: the whole answer, or the part that has come so far."""

    #: Calls of tools are part of the text, each with its name in brackets before its arguments.
    text: str = ""
    finish_reason: str | None = None
    #: Tokens of the prompt and of the completion, of all choices together.
    num_tokens: tuple[int, int] | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    #: Those of the prompt, if the question asks for them beside the text.
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    #: The choices after the first one, in the order of their indices.
    others: list[ClientAnswer] = field(default_factory=list)

    @property
    def choices(self) -> list[ClientAnswer]:
        """All choices."""
        return [self, *self.others]

    def choice(self, index: int) -> ClientAnswer:
        """The choice of an index; there is one from now on. Raises ValueError if ``index`` is none."""
        if not 0 <= index < MAX_CHOICES:
            raise ValueError(f"no index of a choice: {index}")
        while index > len(self.others):
            self.others.append(ClientAnswer())
        return self.choices[index]


class Ending(StrEnum):
    """How an attempt ended, as the client saw it."""

    DONE = "done"
    #: The client got an error, before the answer or inside it.
    ERROR = "error"
    #: The client left on purpose.
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
    #: Ids of the workers whose deaths the router has counted for this request; set by ``router_log.note_deaths``.
    deaths: frozenset[str] = frozenset()


@dataclass
class Fault:
    """A fault that was injected into a process.

    ``what`` is kill, rank (one of its ranks was killed), stop, empty (Redis forgot everything) or failpoint.
    """

    what: str
    kind: str
    name: str
    began_s: float
    #: When the fault was over; infinite until then.
    ended_s: float = float("inf")
    detail: str = ""
    #: The worker's id, which differs at each start.
    worker_id: str = ""

    @property
    def is_kill(self) -> bool:
        """Whether a process got a SIGKILL."""
        return self.what in {"kill", "rank", "failpoint"}

    def __str__(self) -> str:
        return f"{self.what} {self.name}{f' ({self.detail})' if self.detail else ''}"
