"""The items of a conversation, as clients send them: messages, calls, what came of the calls, reasoning, and tools.

The output of a response is accepted as it came. Fields of items that say nothing to a model (ids, states, annotations,
logprobs, what another server has encrypted) are dropped, as in a chat's messages, and so are calls of tools that a
server has made, which come without results. Types that would need support that Baton does not have are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, StrictStr, model_validator

from baton_serve.core.protocol.openai.messages import TextPart
from baton_serve.core.protocol.openai.objects import CountedObject, of_types
from baton_serve.core.protocol.openai.tools import CalledFunction
from baton_serve.router.dialects.objects import TOLD, ByType
from baton_serve.router.dialects.responses.tools import Tools

_TEXTS = ("input_text", "output_text", "text", "refusal")


class Text(TextPart):
    """A part of a message or of a call's output. A refusal counts as its text."""

    type: Literal["input_text", "output_text", "text"]  # type: ignore[assignment]


Texts = StrictStr | Annotated[list[Annotated[Text, of_types(_TEXTS, "parts")]], Field(fail_fast=True)]


class Message(CountedObject):
    """A message of the user, the assistant, the system or the developer. Its type may be missing."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts


class FunctionCall(CalledFunction):
    """A call of the assistant's."""

    type: Literal["function_call"]
    call_id: StrictStr
    namespace: StrictStr | None = None


class CustomCall(CountedObject):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: StrictStr
    name: StrictStr
    input: StrictStr
    namespace: StrictStr | None = None


class _OfClientRun(CountedObject):
    """An item of a tool of OpenAI's that the client runs. Some such items have the id of the call as their own."""

    call_id: StrictStr

    @model_validator(mode="before")
    @classmethod
    def _find_call_id(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("call_id") is None and "id" in value:
            return {**value, "call_id": value["id"]}
        return value


class ClientCall(_OfClientRun):
    """A call of such a tool."""

    type: Literal["local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"]
    action: dict[StrictStr, Any] | None = None
    operation: dict[StrictStr, Any] | None = None
    arguments: Any = None

    @property
    def given(self) -> Any:
        """The arguments."""
        return self.action or self.operation or self.arguments or {}


class CallOutput(CountedObject):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: StrictStr
    output: StrictStr | Annotated[list[Annotated[Text, of_types(_TEXTS, "parts"), TOLD]], Field(fail_fast=True)]


class ClientCallOutput(_OfClientRun):
    """The result of a call of a tool of OpenAI's that the client runs."""

    type: Literal["local_shell_call_output", "shell_call_output", "apply_patch_call_output"]
    #: A text; of a shell, the texts and the end of each command.
    output: Any = None
    status: StrictStr | None = None

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.output, str):
            return self.output
        return self.status or "" if self.output is None else orjson.dumps(self.output).decode()


class MoreTools(CountedObject):
    """Tools that were found, or that come with this item, as if they were among ``tools`` of the request."""

    type: Literal["tool_search_output", "additional_tools"]
    call_id: StrictStr | None = None
    tools: Tools


class DroppedItem(CountedObject):
    """A call that OpenAI's server has made. The model need not know it, since its messages say what came of it."""

    type: Literal["web_search_call", "image_generation_call"]


class _ReasoningText(CountedObject):
    type: Literal["reasoning_text", "text", "summary_text"]
    text: StrictStr


_ReasoningTexts = Annotated[list[_ReasoningText], Field(fail_fast=True)]


class ReasoningItem(CountedObject):
    """What the assistant thought. Baton's items have ``content``; of other servers' items the summary is taken."""

    type: Literal["reasoning"]
    content: _ReasoningTexts | None = None
    summary: _ReasoningTexts | None = None

    @property
    def text(self) -> str:
        """The reasoning; empty: nothing is known of it."""
        return "".join(part.text for part in self.content or self.summary or ())


Item = Annotated[
    Message
    | FunctionCall
    | CustomCall
    | ClientCall
    | CallOutput
    | ClientCallOutput
    | MoreTools
    | DroppedItem
    | ReasoningItem,
    ByType(Message, "items"),
]
