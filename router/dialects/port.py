"""What a dialect has to bring: how a request becomes a chat, and how the chat's answer is told in the dialect."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import BaseModel

    from baton_serve.core.protocol.errors import ApiError
    from baton_serve.router.dialects.chat_answers import Usage
    from baton_serve.router.dialects.names import Names
    from baton_serve.router.dialects.parts import Part
    from baton_serve.router.request.client_request import ClientRequest

#: Of a model whose makers recommend nothing.
NO_DEFAULTS: Final[Mapping[str, float]] = MappingProxyType({})


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


class EventWriter(Protocol):
    """Writes the events of one stream. Each method returns whole events, or nothing."""

    def begin(self, created: int, usage: Usage | None) -> bytes:
        """The answer begins. ``created``: Unix seconds. ``usage``: what is known of the prompt; None: nothing."""

    def open(self, part: Part) -> bytes:
        """A part begins."""

    def add(self, part: Part, piece: str, tokens: Sequence[dict[str, Any]]) -> bytes:
        """A part goes on. ``tokens``: the logprobs of tokens that belong to ``piece``."""

    def close(self, part: Part) -> bytes:
        """A part is over."""

    def end(self, parts: Sequence[Part], ending: Ending) -> bytes:
        """The answer is over."""

    def fail(self, parts: Sequence[Part], error: ApiError) -> bytes:
        """The answer has broken off, maybe before its first part."""


class Translation(Protocol):
    """The translation of one request. ``body``, the request for workers, is what the router acts on and sends."""

    asked: ClientRequest
    body: dict[str, Any]
    #: Whether the client is not shown the model's reasoning.
    hides_reasoning: bool

    def whole(self, answer: bytes) -> bytes:
        """The unstreamed answer, from the worker's. Raises UpstreamError."""

    def writer(self) -> EventWriter:
        """What writes the streamed answer, from its first event on."""


class Dialect(NamedTuple):
    """One path at which clients speak it."""

    #: From a parsed body, the id of its request, and what the model samples with where a request says nothing. Raises
    #: ApiError.
    translate: Callable[[dict[str, Any], str, Mapping[str, float]], Translation]
    #: An error as the whole answer, with the id of its request.
    error: Callable[[ApiError, str], bytes]
    #: The model of bodies.
    request: type[BaseModel]
    #: What it calls the parameters of a chat.
    names: Names
    #: The parameter that has the messages.
    conversation: str = "messages"
    #: The model of errors; None: they have OpenAI's shape.
    error_answer: type[BaseModel] | None = None
    #: The name of one more header with the id of the request; empty: there is none.
    id_header: bytes = b""
