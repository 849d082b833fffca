"""Puts the messages of a chat together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Content = str | list[dict[str, Any]]


class Said(Protocol):
    """A part that is a text to the model."""

    @property
    def text(self) -> str:
        """The text."""


def content_of(said: str | Sequence[Said]) -> Content:
    """The content of a message: one text, or several as parts."""
    if isinstance(said, str):
        return said
    return said[0].text if len(said) == 1 else [{"type": "text", "text": part.text} for part in said]


def call_of(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of the assistant's."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_message(call_id: str, content: Content) -> dict[str, Any]:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


class AssistantTurn:
    """One message of the assistant, from its parts in any order."""

    __slots__ = ("calls", "content", "reasoning")

    def __init__(self) -> None:
        self.reasoning = ""
        self.content: Content | None = None
        self.calls: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.calls or self.content is not None)

    def message(self) -> dict[str, Any]:
        """The message."""
        message: dict[str, Any] = {"role": "assistant", "content": "" if self.content is None else self.content}
        if self.reasoning:
            message["reasoning_content"] = message["reasoning"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message
