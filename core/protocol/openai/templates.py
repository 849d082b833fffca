"""What clients may say about how a conversation becomes a prompt. The fields are vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from baton_serve.core.protocol.errors import invalid_value
from baton_serve.core.protocol.openai.messages import Message
from baton_serve.core.protocol.openai.objects import MAX_KEYS, CountedObject, StrictObject
from baton_serve.core.protocol.openai.tools import Tools

#: Baton's own bounds.
MAX_DOCUMENTS = 1024
MAX_TEMPLATE_CHARS = 1 << 18
#: What ``apply_chat_template`` of transformers takes itself. In ``chat_template_kwargs`` these would be no variables of
#: the template; clients may give some of them in fields of their own.
_NOT_VARIABLES = frozenset(
    {
        *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
#: OpenAI's, and Anthropic's ``max``. What a template does not know, it writes as it is.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Thinking(StrictObject):
    """``thinking``, as some servers of reasoning models know it."""

    type: Literal["enabled", "disabled"]


class TemplateFields(CountedObject):
    """The fields of a chat that its template reads."""

    #: Whether the prompt ends with the beginning of the assistant's answer.
    add_generation_prompt: StrictBool = True
    #: Whether the answer goes on in the last message. Needs ``add_generation_prompt`` false.
    continue_final_message: StrictBool = False
    #: Variables of the template, such as ``enable_thinking``.
    chat_template_kwargs: Annotated[dict[StrictStr, Any], Field(max_length=MAX_KEYS)] | None = None
    #: Functions that the model may call.
    tools: Tools | None = None
    #: How long the model thinks, for templates that have a variable for it.
    reasoning_effort: Effort | None = None
    #: Whether the model thinks before it answers, for templates that have a variable for it.
    thinking: Thinking | None = None
    #: Texts that the template may put into the prompt.
    documents: Annotated[list[dict[StrictStr, StrictStr]], Field(max_length=MAX_DOCUMENTS, fail_fast=True)] | None = (
        None
    )
    #: In place of the model's own, if the worker's setting ``allow_chat_template`` allows it.
    chat_template: Annotated[StrictStr, Field(max_length=MAX_TEMPLATE_CHARS)] | None = None

    @cached_property
    def tool_objects(self) -> list[dict[str, Any]] | None:
        """``tools`` as they came, which is how chat templates expect them; None without any."""
        return [tool.model_dump(exclude_unset=True) for tool in self.tools] if self.tools else None

    def check_template(self, messages: Sequence[Message]) -> None:
        """Check the rules between the fields; raises BadRequestError. ``messages``: the conversation."""
        if self.continue_final_message and self.add_generation_prompt:
            raise invalid_value(
                "continue_final_message", "'continue_final_message' needs 'add_generation_prompt' to be false."
            )
        if self.continue_final_message and messages[-1].tool_calls:
            # The prompt ends where the text of the message ends, and templates write its calls behind that.
            raise invalid_value(
                "continue_final_message",
                "'continue_final_message' continues a text: the calls of the last message cannot be continued.",
            )
        for name in self.chat_template_kwargs or ():
            if name in _NOT_VARIABLES:
                raise invalid_value(
                    "chat_template_kwargs",
                    f"'chat_template_kwargs' has variables of the template, and '{name}' is none.",
                )
