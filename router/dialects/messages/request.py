"""What clients may send to ``/v1/messages``, validated: a parameter works, is a hint, or is refused by name.

What is not known is dropped, as each version of Claude Code has something more. Refused is what is known to change the
answer, and what a chat would act on.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictStr

from baton_serve.core.protocol.openai.choices import ChoiceFields
from baton_serve.core.protocol.openai.hints import Hints
from baton_serve.core.protocol.openai.objects import CountedObject, Unsupported, Whole, of_types, without_nulls
from baton_serve.core.protocol.openai.requests import ChatRequest, Number
from baton_serve.core.protocol.openai.templates import Effort, TemplateFields
from baton_serve.core.protocol.openai.tools import MAX_TOOLS, FunctionName, Parameters
from baton_serve.router.dialects.messages.blocks import Message, Texts
from baton_serve.router.dialects.objects import Asked, Extended, OpenObject

#: Anthropic's own bound.
MIN_THINKING_TOKENS = 1024
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class CacheControl(CountedObject):
    """What Anthropic is to cache. Here everything is cached as long as there is room."""

    type: Literal["ephemeral"]


class Tool(OpenObject):
    """One entry of ``tools``: a function of the client's."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: StrictStr | None = None
    input_schema: Parameters
    #: Changes nothing: calls that are forced follow the schema.
    strict: StrictBool | None = None
    cache_control: CacheControl | None = None
    #: Changes nothing: arguments come as they are made wherever the model's way to write them allows it.
    eager_input_streaming: StrictBool | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Field(max_length=1, fail_fast=True)] | None = None
    #: The model is told of the tool only when the conversation refers to it.
    defer_loading: StrictBool | None = None
    input_examples: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None

    def for_chat(self) -> dict[str, Any]:
        """The same tool of a chat. A schema has a place for examples."""
        schema = self.input_schema or _ANY_OBJECT
        if self.input_examples:
            schema = {**schema, "examples": self.input_examples}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": without_nulls(function)}


class ToolChoice(OpenObject):
    """``tool_choice``. ``name``: of the type ``tool``."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: StrictBool | None = None


class ThinkingConfig(OpenObject):
    """``thinking``. The budget is a hint: a model thinks as long as it does, and ``max_tokens`` bounds all of it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[Whole, Field(ge=MIN_THINKING_TOKENS)] | None = None
    #: ``omitted``: the answer does not show it. ``summarized``: it does, without summing it up.
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(OpenObject):
    """Which form the text must have."""

    type: Literal["json_schema"]
    the_schema: Annotated[dict[StrictStr, Any], Field(alias="schema")]


class OutputConfig(OpenObject):
    """``output_config``. A budget for a task is for models that Anthropic has taught to count."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class Metadata(OpenObject):
    """``metadata``. The id is shown in the admin listing and usable as a filter there."""

    user_id: Annotated[StrictStr, Field(max_length=512)] | None = None


class Prompting(Asked):
    """What a prompt is made of."""

    HINTS: ClassVar[frozenset[str]] = frozenset({"cache_control", "context_management", "speed"})
    OF_CHATS: ClassVar[frozenset[str]] = frozenset(TemplateFields.model_fields)

    model: StrictStr
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    #: Comes before the messages.
    system: Texts | None = None
    tools: (
        Annotated[
            list[Annotated[Tool, of_types(("custom",), "tools")]],
            Field(max_length=MAX_TOOLS, fail_fast=True),
        ]
        | None
    ) = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    #: The former name of ``output_config.format``.
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None
    #: How the history is to be shortened. Nothing is, and the answer says so.
    context_management: dict[str, Any] | None = None
    #: Changes nothing: every answer comes as fast as it can.
    speed: Literal["standard", "fast"] | None = None

    #: This needs a store.
    thread: Unsupported = None
    #: Baton calls no MCP servers.
    mcp_servers: Unsupported = None

    @property
    def schema_of_text(self) -> dict[str, Any] | None:
        """The schema that the answer's text must follow."""
        wanted = (self.output_config and self.output_config.format) or self.output_format
        return None if wanted is None else wanted.the_schema


class MessagesRequest(Prompting, Extended):
    """Body of ``POST /v1/messages``."""

    HINTS: ClassVar[frozenset[str]] = Prompting.HINTS | {"service_tier"}
    OF_CHATS: ClassVar[frozenset[str]] = frozenset(
        {*ChatRequest.model_fields, *ChoiceFields.model_fields} - Hints.model_fields.keys()
    )

    max_tokens: Annotated[Whole, Field(ge=1)]
    stream: StrictBool = False
    stop_sequences: Annotated[list[StrictStr], Field(fail_fast=True)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    #: A place where Anthropic's tools run.
    container: Unsupported = None
    #: Baton cannot promise where it computes.
    inference_geo: Unsupported = None


class CountRequest(Prompting):
    """Body of ``POST /v1/messages/count_tokens``."""
