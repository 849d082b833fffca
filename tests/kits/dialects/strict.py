"""Answers and events, validated strictly against the types of the clients themselves: nothing missing, nothing more."""

from __future__ import annotations

import functools
import json
from typing import Any, TypeVar, get_args

from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

#: OpenAI's servers send it, and their client's types do not know it.
UNDECLARED = {(Response, "store")}
M = TypeVar("M", bound=BaseModel)


def strictly(kind: type[M], data: bytes | str) -> M:
    """The object; fails if a field is of another type, or unknown."""
    found = kind.model_validate_json(data, strict=True)
    _check_known(found)
    return found


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
        unknown = {name for name in value.model_extra or () if (type(value), name) not in UNDECLARED}
        assert not unknown, f"{type(value).__name__} has no {unknown}"
        for name in type(value).model_fields:
            _check_known(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            _check_known(each)
