"""Answers and events, validated strictly against the types of the clients themselves: nothing missing, nothing more."""

from __future__ import annotations

import functools
import json
from typing import Any, Literal, TypeVar, get_args

from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, CompletionChoice, Model
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    chat_completion,
    chat_completion_chunk,
)
from openai.types.completion_choice import Logprobs
from openai.types.responses import Response, ResponseCustomToolCall, ResponseStreamEvent
from pydantic import BaseModel

#: What the types of OpenAI's client do not know: a field that its servers send, and vLLM's, which Baton has as well.
UNDECLARED: dict[type[BaseModel], set[str]] = {
    Response: {"store", "presence_penalty", "frequency_penalty"},
    ResponseCustomToolCall: {"status"},
    ChatCompletion: {"prompt_logprobs", "prompt_token_ids"},
    ChatCompletionChunk: {"prompt_token_ids"},
    ChatCompletionMessage: {"reasoning_content", "reasoning"},
    chat_completion.Choice: {"stop_reason", "token_ids"},
    chat_completion_chunk.Choice: {"stop_reason", "token_ids"},
    chat_completion_chunk.ChoiceDelta: {"reasoning_content", "reasoning"},
    CompletionChoice: {"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs"},
    Model: {"root", "parent", "max_model_len", "sampling_defaults"},
}
M = TypeVar("M", bound=BaseModel)


class EchoLogprobs(Logprobs):
    """With an echo OpenAI sends nulls for the first token, which its client's type does not have."""

    token_logprobs: list[float | None] | None = None  # type: ignore[assignment]
    top_logprobs: list[dict[str, float] | None] | None = None  # type: ignore[assignment]


class EchoChoice(CompletionChoice):
    logprobs: EchoLogprobs | None = None


class EchoCompletion(Completion):
    """An answer with an echo."""

    choices: list[EchoChoice]  # type: ignore[assignment]


class EventChoice(EchoChoice):
    """Events before the last have no reason yet. The client has one type for events and answers, without a null."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class CompletionEvent(Completion):
    """An event of a completion's stream."""

    choices: list[EventChoice]  # type: ignore[assignment]


def strictly(kind: type[M], data: bytes | str) -> M:
    """The object; fails if a field is of another type, or unknown."""
    found = kind.model_validate_json(data, strict=True)
    _check_known(found)
    return found


def plain_events(kind: type[M], text: str) -> list[M]:
    """The events of a stream, which have no names, without its end mark. Comments are left out."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    *found, end = (block[6:] for block in blocks)
    assert end == "[DONE]"
    return [strictly(kind, data) for data in found]


def response_of(data: bytes | str) -> Response:
    return strictly(Response, data)


def message_of(data: bytes | str) -> Message:
    return strictly(Message, data)


def count_of(data: bytes | str) -> int:
    return strictly(MessageTokensCount, data).input_tokens


def messages_error_of(data: bytes | str) -> ErrorResponse:
    return strictly(ErrorResponse, data)


def response_events(text: str) -> list[Any]:
    """The events of a response's stream, in order and numbered without a gap."""
    events = [strictly(_by_type(ResponseStreamEvent)[name], data) for name, data in named_events(text)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def message_events(text: str) -> list[Any]:
    """The events of a message's stream. An error is an ``ErrorResponse``."""
    kinds = {**_by_type(RawMessageStreamEvent), "error": ErrorResponse}
    return [strictly(kinds[name], data) for name, data in named_events(text)]


def named_events(text: str) -> list[tuple[str, str]]:
    """Name and data of each event. Comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        assert name.startswith("event: ") and data.startswith("data: ")
        assert json.loads(data[6:])["type"] == name[7:]
        found.append((name[7:], data[6:]))
    return found


@functools.cache
def _by_type(union: Any) -> dict[str, type[BaseModel]]:
    """The members of a union by the value of their field ``type``."""
    (members, *_) = get_args(union)
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(members)}


def _check_known(value: Any) -> None:
    if isinstance(value, BaseModel):
        known = {name for kind, names in UNDECLARED.items() if isinstance(value, kind) for name in names}
        unknown = set(value.model_extra or ()) - known
        assert not unknown, f"{type(value).__name__} has no {unknown}"
        for name in type(value).model_fields:
            _check_known(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            _check_known(each)
