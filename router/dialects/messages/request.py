"""What clients may send to ``/v1/messages``, validated: a parameter works, is a hint, or is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictStr

from core.protocol.openai.objects import CountedObject, StrictObject, Unsupported, Whole, of_types
from core.protocol.openai.requests import Number
from core.protocol.openai.tools import MAX_TOOLS, FunctionName, Parameters
from router.dialects.extensions import Extended
from router.dialects.messages.blocks import Message, Texts

#: Anthropic's own bound.
MIN_THINKING_TOKENS = 1024
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class CacheControl(CountedObject):
    """What Anthropic is to cache. Here everything is cached as long as there is room."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["ephemeral"]


class Tool(StrictObject):
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
    defer_loading: Unsupported = None
    input_examples: Unsupported = None

    def for_chat(self) -> dict[str, Any]:
        """The same tool of a chat."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema or _ANY_OBJECT}
        return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


class ToolChoice(StrictObject):
    """``tool_choice``. ``name``: of the type ``tool``."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: StrictBool | None = None


class ThinkingConfig(StrictObject):
    """``thinking``. The budget is a hint: a model thinks as long as it does, and ``max_tokens`` bounds all of it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[Whole, Field(ge=MIN_THINKING_TOKENS)] | None = None
    #: ``omitted``: the answer does not show it. ``summarized``: it does, without summing it up.
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(StrictObject):
    """Which form the text must have."""

    type: Literal["json_schema"]
    the_schema: Annotated[dict[StrictStr, Any], Field(alias="schema")]


class OutputConfig(StrictObject):
    """``output_config``."""

    effort: Literal["low", "medium", "high", "xhigh"] | None = None
    format: OutputFormat | None = None


class Metadata(StrictObject):
    """``metadata``. The id is shown in the admin listing and usable as a filter there."""

    user_id: Annotated[StrictStr, Field(max_length=512)] | None = None


class Prompting(StrictObject):
    """What a prompt is made of. ``HINTS`` are the fields that are checked and change nothing."""

    HINTS: ClassVar[frozenset[str]] = frozenset({"cache_control"})

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
    cache_control: CacheControl | None = None
    speed: Literal["standard"] | None = None

    #: This needs a store.
    thread: Unsupported = None
    #: These need models or services of Anthropic's.
    context_management: Unsupported = None
    mcp_servers: Unsupported = None
    user_profile_id: Unsupported = None
    workspace_id: Unsupported = None


class MessagesRequest(Prompting, Extended):
    """Body of ``POST /v1/messages``."""

    HINTS: ClassVar[frozenset[str]] = frozenset({"cache_control", "service_tier"})

    max_tokens: Annotated[Whole, Field(ge=1)]
    stream: StrictBool = False
    stop_sequences: Annotated[list[StrictStr], Field(fail_fast=True)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    container: Unsupported = None
    diagnostics: Unsupported = None
    inference_geo: Unsupported = None


class CountRequest(Prompting):
    """Body of ``POST /v1/messages/count_tokens``."""
