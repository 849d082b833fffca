"""One request for a response: the chat that it becomes, and the response that the chat's answer becomes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from core.protocol.errors import BadRequestError
from core.protocol.openai.requests import ChatRequest, validate
from router.dialects.extensions import checked
from router.dialects.names import Names
from router.dialects.responses.answer import ResponseObject
from router.dialects.responses.conversation import messages_of
from router.dialects.responses.events import ResponseEvents
from router.dialects.responses.request import AllowedTools, NamedFunction, ResponseRequest
from router.dialects.whole import whole_answer
from router.request.client_request import ClientRequest
from router.request.endpoints import RESPONSES

if TYPE_CHECKING:
    from core.protocol.errors import ApiError

NAMES = Names(
    {
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
    }
)


class ResponseTranslation:
    """Implements ``Translation``."""

    hides_reasoning = False

    def __init__(self, body: dict[str, Any], request_id: str) -> None:
        """Raises ApiError."""
        request = checked(ResponseRequest, body)
        _complain(request)
        self.body = chat_of(request)
        with NAMES.applied():
            chat = validate(ChatRequest, self.body)
        self.asked = ClientRequest.of(chat, chat=True)
        self.asked.asked_at = RESPONSES.path
        self._response = ResponseObject(request, body, request_id)

    def whole(self, answer: bytes) -> bytes:
        """See ``Translation``."""
        found = whole_answer(answer)
        return orjson.dumps(self._response.ended(found.created, found.parts, found.ending))

    def writer(self) -> ResponseEvents:
        """See ``Translation``."""
        return ResponseEvents(self._response)


def error_answer(error: ApiError, request_id: str) -> bytes:
    """An error as the whole answer, in the shape that all errors have."""
    return error.to_json(request_id)


def chat_of(request: ResponseRequest) -> dict[str, Any]:
    """The body of the chat."""
    text, reasoning = request.text, request.reasoning
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages_of(request),
        "stream": request.stream,
        "stream_options": {"include_usage": True} if request.stream else None,
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "logprobs": request.wants_logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        "response_format": text.format.for_chat() if text is not None and text.format is not None else None,
        "reasoning_effort": None if reasoning is None else reasoning.effort,
        "user": request.user,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
        **_tools_of(request),
        **request.extensions,
    }
    return {name: value for name, value in body.items() if value is not None}


def _tools_of(request: ResponseRequest) -> dict[str, Any]:
    """The fields about tools. Of those that may not be called the model is not told."""
    tools, choice = request.tools or [], request.tool_choice
    chosen: Any = choice
    if isinstance(choice, AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        tools, chosen = [tool for tool in tools if tool.name in allowed], choice.mode
    elif isinstance(choice, NamedFunction):
        chosen = {"type": "function", "function": {"name": choice.name}}
    return {
        "tools": [tool.for_chat() for tool in tools] or None,
        "tool_choice": chosen,
        "parallel_tool_calls": None if request.parallel_tool_calls else False,
    }


def _complain(request: ResponseRequest) -> None:
    """Check the rules between fields that a chat does not have; raises BadRequestError."""
    if request.stream_options is not None and not request.stream:
        raise BadRequestError(
            "'stream_options' is only allowed with 'stream'.", param="stream_options", code="invalid_value"
        )
    choice = request.tool_choice
    if isinstance(choice, AllowedTools):
        known = {tool.name for tool in request.tools or ()}
        unknown = next((tool.name for tool in choice.tools if tool.name not in known), None)
        if unknown is not None:
            raise BadRequestError(
                f"'tool_choice' names '{unknown}', which is none of 'tools'.", param="tool_choice", code="invalid_value"
            )
