"""The messages of a chat, as clients send them.

An answer of Baton or of another server is accepted as history: every field of OpenAI's messages is known, null means
absent, ``reasoning_content`` is known too, because chat templates use it, and so is ``reasoning``, vLLM's name for the
same. Fields of other vendors (``cache_control``, ...) are dropped at once. The functions of OpenAI's older API are read
as tools. A field that would need support that Baton does not have is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.openai.objects import CountedObject, Unsupported, of_types, without_nulls
from baton_serve.core.protocol.openai.tools import ToolCalls

#: The fields of a message that are passed on.
_PLAIN = frozenset({"role", "content", "name"})
#: The types of parts that have a text. Pictures and the like are refused by the name of their type.
_PARTS = ("text", "refusal")


class TextPart(CountedObject):
    """One part of a message's content. Only text is supported; an assistant's refusal counts as text."""

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

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | Annotated[list[Annotated[TextPart, of_types(_PARTS, "parts")]], Field(fail_fast=True)]
    name: StrictStr | None = None
    refusal: StrictStr | None = None
    audio: Unsupported = None
    function_call: Unsupported = None
    #: The assistant's calls, and to which of them a message of a tool is the answer.
    tool_calls: ToolCalls | None = None
    tool_call_id: StrictStr | None = None
    reasoning_content: StrictStr | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: Any) -> Any:
        """Without its nulls. A content that is null is empty; only the assistant may leave it out."""
        if not isinstance(value, dict):
            return value
        found = _with_tools(without_nulls(value))
        if isinstance(found.get("reasoning"), str):
            found = {"reasoning_content": found["reasoning"], **found}
        if "content" not in found and ("content" in value or found.get("role") == "assistant"):
            return {**found, "content": ""}
        return found

    @model_validator(mode="after")
    def _check_calls(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("calls", "Only a message of the assistant has tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("calls", "A message of a tool needs its tool_call_id")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it, with its content in the form in which it came."""
        message: dict[str, Any] = {"role": self.role, "content": self._plain_content()}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message | {name: value for name, value in self._more.items() if value}

    def text(self) -> str:
        """The content and the refusal as one string."""
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return said + (self.refusal or "")

    @property
    def _more(self) -> dict[str, Any]:
        """The fields that a message may have besides. Templates and engines know reasoning by one name or the other."""
        reasoning = {"reasoning_content": self.reasoning_content, "reasoning": self.reasoning_content}
        return {"name": self.name, "tool_call_id": self.tool_call_id, **reasoning}

    def plain(self) -> dict[str, Any]:
        """The message in a form that every engine understands."""
        more = {name: value for name, value in self._more.items() if value is not None}
        if self.tool_calls:
            more["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return {"role": self.role, "content": self._plain_content(), **more}

    def _plain_content(self) -> str | list[dict[str, str]]:
        """The content, with the refusal; parts are as OpenAI has them."""
        if isinstance(self.content, str):
            return self.text()
        parts = [part.text for part in self.content] + ([self.refusal] if self.refusal else [])
        return [{"type": "text", "text": text} for text in parts]


def _with_tools(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a tool in the place of the function that OpenAI had before: templates know no other."""
    if message.get("role") == "function":
        return {"tool_call_id": f"call_{message.get('name')}", **message, "role": "tool"}
    called = message.get("function_call")
    if isinstance(called, dict) and message.get("role") == "assistant" and not message.get("tool_calls"):
        calls = [{"id": f"call_{called.get('name')}", "type": "function", "function": called}]
        return {**message, "function_call": None, "tool_calls": calls}
    return message


def plain_messages(messages: Sequence[Message], given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ``given`` messages, from which ``messages`` were made, without the fields that are dropped."""
    return [
        same
        if type(same.get("content")) is str and same.keys() <= _PLAIN and same["role"] == message.role
        else message.plain()
        for message, same in zip(messages, given, strict=True)
    ]
