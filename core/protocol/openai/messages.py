"""The messages of a chat, as clients send them.

An answer of Baton or of another server is accepted as history: every field of OpenAI's messages is known, null means
absent, and fields of other vendors (``reasoning_content``, ``cache_control``, ...) are dropped at once. A field that
would need support that Baton does not have is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictStr, model_validator

from core.protocol.openai.objects import CountedObject, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The fields of a message that are passed on.
_PLAIN = frozenset({"role", "content", "name"})


class TextPart(CountedObject):
    """One part of a message's content. Only text is supported; an assistant's refusal counts as text."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: StrictStr

    @model_validator(mode="before")
    @classmethod
    def _read_refusal(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "refusal" and "refusal" in value:
            return {"type": "text", "text": value["refusal"]}
        return value


class Message(CountedObject):
    """One message of a chat. A message of the assistant may have no content, or ``refusal`` in place of it."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: StrictStr | Annotated[list[TextPart], Field(fail_fast=True)]
    name: StrictStr | None = None
    refusal: StrictStr | None = None
    audio: Unsupported = None
    function_call: Unsupported = None
    tool_calls: Unsupported = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if None in value.values():
            value = {name: given for name, given in value.items() if given is not None}
        if "content" not in value and value.get("role") == "assistant":
            return {**value, "content": ""}
        return value

    def text(self) -> str:
        """The content and the refusal as one string."""
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return said + (self.refusal or "")

    def plain(self) -> dict[str, Any]:
        """The message in a form that every engine understands: role, content and name."""
        named = {} if self.name is None else {"name": self.name}
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.text(), **named}
        parts = [part.text for part in self.content] + ([self.refusal] if self.refusal else [])
        return {"role": self.role, "content": [{"type": "text", "text": text} for text in parts], **named}


def plain_messages(messages: Sequence[Message], given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ``given`` messages, from which ``messages`` were made, without the fields that are dropped."""
    return [
        same if type(same.get("content")) is str and same.keys() <= _PLAIN else message.plain()
        for message, same in zip(messages, given, strict=True)
    ]
