"""The items of a conversation, as clients send them: messages, calls, what came of the calls, and reasoning.

The output of a response is accepted as it came. Fields of items that say nothing to a model (ids, states, annotations,
logprobs) are dropped, as those of a chat's messages are. Types that would need support that Baton does not have are
refused by name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictStr, Tag

from core.protocol.openai.messages import TextPart
from core.protocol.openai.objects import CountedObject, Unsupported, by_type, of_types
from core.protocol.openai.tools import CalledFunction

_TEXTS = ("input_text", "output_text", "text", "refusal")
#: The names of the models below, by the type of an item.
_MODELS = {
    "message": "Message",
    "function_call": "FunctionCall",
    "function_call_output": "CallOutput",
    "reasoning": "ReasoningItem",
}


class Text(TextPart):
    """A part of a message or of a call's output. Of a refusal its text."""

    type: Literal["input_text", "output_text", "text"]  # type: ignore[assignment]


Texts = StrictStr | Annotated[list[Annotated[Text, of_types(_TEXTS, "parts")]], Field(fail_fast=True)]


class Message(CountedObject):
    """What somebody said. Its type may be missing."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts


class FunctionCall(CalledFunction):
    """A call of the assistant's."""

    type: Literal["function_call"]
    call_id: StrictStr


class CallOutput(CountedObject):
    """What came of a call."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call_output"]
    call_id: StrictStr
    output: Texts


class _ReasoningText(CountedObject):
    model_config = ConfigDict(extra="ignore")

    type: Literal["reasoning_text", "text", "summary_text"]
    text: StrictStr


_ReasoningTexts = Annotated[list[_ReasoningText], Field(fail_fast=True)]


class ReasoningItem(CountedObject):
    """What the assistant thought. Baton's own have ``content``; of others' the summary has to do."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["reasoning"]
    content: _ReasoningTexts | None = None
    summary: _ReasoningTexts | None = None
    #: Nobody here could read what another server has encrypted.
    encrypted_content: Unsupported = None

    @property
    def text(self) -> str:
        """The reasoning; empty: nothing is known of it."""
        return "".join(part.text for part in self.content or self.summary or ())


Item = Annotated[
    Annotated[Message, Tag("Message")]
    | Annotated[FunctionCall, Tag("FunctionCall")]
    | Annotated[CallOutput, Tag("CallOutput")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")],
    by_type(_MODELS, "Message"),
    of_types(_MODELS, "items"),
]
