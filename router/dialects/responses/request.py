"""What clients may send to ``/v1/responses``, validated: a parameter works, is a hint, or is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from core.protocol.openai.hints import CacheKey, Metadata, ServiceTier, Verbosity
from core.protocol.openai.objects import StrictObject, Unsupported, Whole, of_types
from core.protocol.openai.requests import MAX_TOP_LOGPROBS, Number
from core.protocol.openai.tools import MAX_TOOLS, Function, FunctionName
from router.dialects.extensions import Extended
from router.dialects.responses.items import Item

#: What ``include`` may ask for. The second changes nothing: the item of reasoning has all of it, and is sent back as it
#: came, so there is nothing that would have to be encrypted.
Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_LOGPROBS = "message.output_text.logprobs"


class FunctionTool(Function):
    """One entry of ``tools``."""

    type: Literal["function"]
    defer_loading: Unsupported = None
    output_schema: Unsupported = None
    allowed_callers: Unsupported = None
    is_async: Annotated[Unsupported, Field(alias="async")] = None

    def for_chat(self) -> dict[str, Any]:
        """The same tool of a chat."""
        return {"type": "function", "function": self.model_dump(include=set(Function.model_fields), exclude_unset=True)}


class NamedFunction(StrictObject):
    """A function by its name."""

    type: Literal["function"]
    name: FunctionName


class AllowedTools(StrictObject):
    """``tool_choice`` when only some of the tools may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[NamedFunction, of_types(("function",), "tools")]],
        Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True),
    ]


class TextFormat(StrictObject):
    """Which form the text must have. The fields beside ``type`` are for JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: StrictStr | None = None
    description: StrictStr | None = None
    the_schema: Annotated[dict[StrictStr, Any] | None, Field(alias="schema")] = None
    strict: StrictBool | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> TextFormat:
        if self.type != "json_schema" and len(self.model_dump(exclude_none=True)) > 1:
            raise PydanticCustomError("text_format", "Only json_schema has more than its type")
        return self

    def for_chat(self) -> dict[str, Any]:
        """``response_format`` of a chat, which judges the schema."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": self.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)}


class TextConfig(StrictObject):
    """``text``."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningConfig(StrictObject):
    """``reasoning``. Nothing is summed up: the item of a response has the reasoning itself."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    #: Which reasoning of earlier turns a model is shown is its chat template's affair.
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class StreamOptions(StrictObject):
    """``stream_options``."""

    include_obfuscation: Unsupported = None


class ResponseRequest(Extended):
    """Body of ``POST /v1/responses``. ``HINTS`` are the fields that are checked and change nothing."""

    HINTS: ClassVar[frozenset[str]] = frozenset({"max_tool_calls", "metadata", "prompt_cache_key", "service_tier"})

    model: StrictStr
    #: One text, or the items of a conversation.
    input: StrictStr | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    #: Comes before ``input``.
    instructions: StrictStr | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    tools: (
        Annotated[
            list[Annotated[FunctionTool, of_types(("function",), "tools")]],
            Field(max_length=MAX_TOOLS, fail_fast=True),
        ]
        | None
    ) = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedTools | None = None
    parallel_tool_calls: StrictBool = True
    #: OpenAI bounds calls of built-in tools by it, and there are none here.
    max_tool_calls: Annotated[Whole, Field(ge=1)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Includable], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncation: Literal["disabled"] | None = None
    #: Shown in the admin listing and usable as a filter there.
    user: Annotated[StrictStr, Field(max_length=512)] | None = None
    safety_identifier: Annotated[StrictStr, Field(max_length=512)] | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None

    #: These need a store.
    store: Unsupported = None
    background: Unsupported = None
    previous_response_id: Unsupported = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    #: These need models or services of OpenAI's.
    access_programs: Unsupported = None
    context_management: Unsupported = None
    image: Unsupported = None
    moderation: Unsupported = None
    prompt_cache_options: Unsupported = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text comes with logprobs."""
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())
