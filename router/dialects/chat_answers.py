"""Reads the answers of chats, whole or an event of a stream. Pure. What no dialect shows is skipped."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
from msgspec import field

from baton_serve.core.protocol.errors import UpstreamError

_T = TypeVar("_T")
#: A whole number that can be written again.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    """A call, or in a stream a part of one: the first part of each has its id and its name."""

    function: _Function = field(default_factory=_Function)
    index: int | None = None
    id: str | None = None


class Delta(msgspec.Struct):
    """What a chunk adds to the message, or a whole message. vLLM calls reasoning by the shorter name."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class _Alternative(TypedDict, total=False):
    token: str
    bytes: list[Count] | None
    logprob: float | None


class _Token(_Alternative, total=False):
    top_logprobs: list[_Alternative] | None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class ChatChoice(msgspec.Struct):
    """The only choice. ``stop_reason``: the stop string that ended the answer."""

    delta: Delta = field(default_factory=Delta)
    message: Delta = field(default_factory=Delta)
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def tokens(self) -> list[dict[str, Any]]:
        """The logprobs of its tokens; empty if none were asked for."""
        found: list[Any] | None = None if self.logprobs is None else self.logprobs.content
        return found or []


class _PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct):
    """The counts of tokens."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were in P's cache."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the answer that are its reasoning."""
        return (self.completion_tokens_details and self.completion_tokens_details.reasoning_tokens) or 0


class ChatAnswer(msgspec.Struct):
    """A whole answer, or one chunk of a stream. ``created``: Unix seconds."""

    choices: list[ChatChoice] = field(default_factory=list)
    created: Count = 0
    usage: Usage | None = None


_decoder = msgspec.json.Decoder(ChatAnswer)


def read_answer(data: bytes) -> ChatAnswer:
    """A whole answer, or the data of one event. Raises UpstreamError."""
    return decoded(_decoder, data)


def decoded(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """Decode a worker's JSON. Raises UpstreamError."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamError("A worker's answer was not understood.") from None
