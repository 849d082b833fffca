"""What clients may send to ``/v1/responses``, validated: a parameter works, is a hint, or is refused by name.

Agents send more with each version. A field that is not known here is dropped, unless a chat has it: then it would have
meant something, and the client has confused the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.openai.hints import CacheKey, Hints, Metadata
from baton_serve.core.protocol.openai.objects import StrictObject, Unsupported, Whole
from baton_serve.core.protocol.openai.requests import MAX_TOP_LOGPROBS, NO_EFFECT, ChatRequest, Number
from baton_serve.router.dialects.objects import Extended, OpenObject
from baton_serve.router.dialects.responses.items import Item, MoreTools
from baton_serve.router.dialects.responses.toolbox import ToolChoice
from baton_serve.router.dialects.responses.tools import Tool, Tools

_LOGPROBS = "message.output_text.logprobs"


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


class TextConfig(OpenObject):
    """``text``."""

    format: TextFormat | None = None
    #: A hint for OpenAI's own models.
    verbosity: Any = None


class ReasoningConfig(OpenObject):
    """``reasoning``."""

    #: Validated as a chat's ``reasoning_effort``.
    effort: StrictStr | None = None
    #: Nothing is summed up: the item of a response has the reasoning itself.
    summary: Any = None
    generate_summary: Any = None
    #: Which reasoning of earlier turns a model is shown is its chat template's affair.
    context: Any = None
    mode: Any = None


class CacheOptions(OpenObject):
    """``prompt_cache_options``. Everything is cached while there is room."""

    mode: Any = None
    ttl: Any = None
    #: Asks for no answer.
    prewarm: Unsupported = None


class ResponseRequest(Extended):
    """Body of ``POST /v1/responses``."""

    HINTS: ClassVar[frozenset[str]] = frozenset(
        {
            *("access_programs", "client_metadata", "context_management", "image", "max_tool_calls", "metadata"),
            *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier", "store"),
            *("stream_options", "truncation"),
        }
    )
    OF_CHATS: ClassVar[frozenset[str]] = frozenset(
        (ChatRequest.model_fields.keys() | NO_EFFECT) - Hints.model_fields.keys()
    )

    model: StrictStr
    #: One text, or the items of a conversation.
    input: StrictStr | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    #: Comes before ``input``.
    instructions: StrictStr | None = None
    stream: StrictBool = False
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: StrictBool = True
    #: OpenAI bounds calls of built-in tools by it, and there are none here.
    max_tool_calls: Annotated[Whole, Field(ge=1)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    #: More that the response is to have. What there is anyway, and what there is not, is no error.
    include: Annotated[list[StrictStr], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    #: Shown in the admin listing and usable as a filter there.
    user: Annotated[StrictStr, Field(max_length=512)] | None = None
    safety_identifier: Annotated[StrictStr, Field(max_length=512)] | None = None
    metadata: Metadata | None = None
    prompt_cache_key: CacheKey | None = None

    #: Hints: agents send them, and the response says what was done: nothing is stored, dropped or compacted.
    access_programs: Any = None
    client_metadata: Any = None
    context_management: Any = None
    image: Any = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Any = None
    service_tier: Any = None
    store: Any = None
    stream_options: Any = None
    truncation: Any = None

    #: These need a store.
    background: Unsupported = None
    previous_response_id: Unsupported = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    #: This needs a model of OpenAI's.
    moderation: Unsupported = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text comes with logprobs."""
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())

    @property
    def all_tools(self) -> Iterator[Tool]:
        """The tools, with those that came later in the conversation."""
        yield from self.tools or ()
        for item in () if isinstance(self.input, str) else self.input:
            if isinstance(item, MoreTools):
                yield from item.tools
