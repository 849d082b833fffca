"""The messages of a chat, as clients send them.

An answer of ours, or of another server, is taken back as history: every field that OpenAI's messages have is known,
null means absent, and what other vendors add (``reasoning_content``, ``cache_control``, ...) is dropped before anybody
computes with it. A field that would have to do something here, and does not, is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictStr, model_validator

from core.protocol.objects import CountedObject, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What is left of a message.
_PLAIN = frozenset({"role", "content", "name"})


class TextPart(CountedObject):
    """One part of a message's content; only text is served. What an assistant refused with is a text as well."""

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
    """One message of a chat. An assistant's may have no content: it has said nothing then, or ``refusal``."""

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
        """What was said as one string."""
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return said + (self.refusal or "")

    def plain(self) -> dict[str, Any]:
        """The same for any engine: role, content and name."""
        named = {} if self.name is None else {"name": self.name}
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.text(), **named}
        parts = [part.text for part in self.content] + ([self.refusal] if self.refusal else [])
        return {"role": self.role, "content": [{"type": "text", "text": text} for text in parts], **named}


def plain_messages(messages: Sequence[Message], given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``given`` messages, of which ``messages`` were made, without what is dropped. Most are as they were."""
    return [
        same if type(same.get("content")) is str and same.keys() <= _PLAIN else message.plain()
        for message, same in zip(messages, given, strict=True)
    ]
