"""What a dialect has to bring: how a request becomes a chat, and how the chat's answer is told in the dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import orjson

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.dialects.chat_answers import Usage
from baton_serve.router.request.client_request import ClientRequest


class Kind(Enum):
    """What a part is."""

    REASONING = auto()
    TEXT = auto()
    CALL = auto()


@dataclass
class Part:
    """One part. ``text``: a call's is its arguments. ``tokens``: the logprobs of a text's tokens."""

    kind: Kind
    index: int
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    #: False: the answer ended in the part, for whatever reason.
    is_complete: bool = True

    @property
    def text(self) -> str:
        """All that has come of it."""
        return "".join(self.pieces)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of a call, maybe none; None: they are not complete."""
        try:
            found = orjson.loads(self.text or "{}")
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict) else None


class Ending(NamedTuple):
    """How an answer ended. ``finish_reason`` is the chat's; ``stop_reason`` the stop string that ended it."""

    finish_reason: str
    stop_reason: str | int | None
    #: None: the worker has not said.
    usage: Usage | None

    @property
    def is_complete(self) -> bool:
        """Whether the answer was not cut off."""
        return self.finish_reason != "length"


class EventWriter:
    """Writes the events of one stream. Each method returns whole events. This class writes none, for a whole answer."""

    def begin(self, created: int, usage: Usage | None) -> bytes:
        """The answer begins. ``created``: Unix seconds. ``usage``: what is known of the prompt; None: nothing."""
        return b""

    def open(self, part: Part) -> bytes:
        """A part begins."""
        return b""

    def add(self, part: Part, piece: str, tokens: Sequence[dict[str, Any]]) -> bytes:
        """A part goes on. ``tokens``: the logprobs of tokens that belong to ``piece``."""
        return b""

    def close(self, part: Part) -> bytes:
        """A part is over."""
        return b""

    def end(self, parts: Sequence[Part], ending: Ending) -> bytes:
        """The answer is over."""
        return b""

    def fail(self, parts: Sequence[Part], error: ApiError) -> bytes:
        """The answer has broken off, maybe before its first part."""
        return b""


class Translation:
    """The translation of one request. ``body``, the request for workers, is what the router acts on and sends."""

    asked: ClientRequest
    body: dict[str, Any]
    #: Whether the client is not shown the model's reasoning.
    hides_reasoning = False

    def whole(self, answer: bytes) -> bytes:
        """The unstreamed answer, from the worker's. Raises UpstreamError."""
        raise NotImplementedError

    def writer(self) -> EventWriter:
        """What writes the streamed answer, from its first event on."""
        raise NotImplementedError
