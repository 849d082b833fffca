"""The chat that a request of Anthropic's becomes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.objects import without_nulls
from baton_serve.router.dialects.messages.conversation import is_continued, messages_of
from baton_serve.router.dialects.messages.offered import offered
from baton_serve.router.dialects.names import Names

if TYPE_CHECKING:
    from baton_serve.router.dialects.messages.request import MessagesRequest, Prompting, ToolChoice

NAMES = Names(
    {
        "max_completion_tokens": "max_tokens",
        "stop": "stop_sequences",
        "response_format.json_schema": "output_config.format",
        "response_format": "output_config.format",
        "reasoning_effort": "output_config.effort",
    }
)
#: A chat wants a name for a schema, and Anthropic has none.
_SCHEMA_NAME = "answer"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def prompt_of(request: Prompting) -> dict[str, Any]:
    """The fields of the chat from which its prompt is made."""
    _complain(request)
    config, thinking = request.output_config, request.thinking
    fields: dict[str, Any] = {
        "model": request.model,
        "messages": messages_of(request),
        "tools": [tool.for_chat() for tool in offered(request)] or None,
        "reasoning_effort": None if config is None else config.effort,
        # Adaptive leaves it to the model, and so to its chat template.
        "thinking": None if thinking is None or thinking.type == "adaptive" else {"type": thinking.type},
    }
    if is_continued(request):
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    prompt: dict[str, Any] = without_nulls(fields)
    return prompt


def chat_of(request: MessagesRequest) -> dict[str, Any]:
    """The body of the chat. A stream's chunks have the usage so far, because the first event tells the prompt's."""
    choice, schema = request.tool_choice, request.schema_of_text
    fields: dict[str, Any] = {
        "stream": request.stream,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True} if request.stream else None,
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tool_choice": None if choice is None else _chosen(choice),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "response_format": None if schema is None else _response_format(schema),
        "user": None if request.metadata is None else request.metadata.user_id,
        **request.extensions,
    }
    return {**prompt_of(request), **without_nulls(fields)}


def _chosen(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": _SCHEMA_NAME, "schema": schema}}


def _complain(request: Prompting) -> None:
    """Check the rules between fields that a chat does not have; raises BadRequestError."""
    choice, thinking = request.tool_choice, request.thinking
    if choice is not None:
        _belongs("tool_choice.name", choice.name, "tool", choice.type)
    if thinking is not None:
        _belongs("thinking.budget_tokens", thinking.budget_tokens, "enabled", thinking.type)


def _belongs(param: str, value: Any, owner: str, kind: str) -> None:
    """Raise BadRequestError unless the parameter is given if, and only if, the type beside it is ``owner``."""
    if kind == owner and value is None:
        raise BadRequestError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if kind != owner and value is not None:
        raise BadRequestError(f"'{param}' is only allowed with the type {owner}.", param=param, code="invalid_value")
