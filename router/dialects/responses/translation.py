"""One request for a response: the chat that it becomes, and the response that the chat's answer becomes. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from baton_serve.core.protocol.openai.objects import without_nulls
from baton_serve.core.protocol.openai.requests import ChatRequest, validate
from baton_serve.router.dialects.names import Names
from baton_serve.router.dialects.objects import checked
from baton_serve.router.dialects.parts import whole_answer
from baton_serve.router.dialects.port import Translation
from baton_serve.router.dialects.responses.answer import ResponseObject
from baton_serve.router.dialects.responses.conversation import messages_of
from baton_serve.router.dialects.responses.events import ResponseEvents
from baton_serve.router.dialects.responses.request import ResponseRequest
from baton_serve.router.dialects.responses.toolbox import Toolbox
from baton_serve.router.request.client_request import CHAT_PATH, ClientRequest
from baton_serve.router.request.endpoints import RESPONSES

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


class ResponseTranslation(Translation):
    """Translates a request for a response."""

    def __init__(
        self,
        body: dict[str, Any],
        request_id: str,
        defaults: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: Unix seconds. Raises ApiError."""
        request = checked(ResponseRequest, body)
        tools = Toolbox(request.all_tools)
        self.body = chat_of(request, tools)
        with NAMES.applied():
            chat = validate(ChatRequest, self.body)
        self.asked = ClientRequest(chat, CHAT_PATH)
        self.asked.asked_at = RESPONSES.path
        self._response = ResponseObject(request, body, request_id, tools, defaults or {})
        self._clock = clock

    def whole(self, answer: bytes) -> bytes:
        created, parts, ending = whole_answer(answer, hides_reasoning=False)
        return orjson.dumps(self._response.ended(created, int(self._clock()), parts, ending))

    def writer(self) -> ResponseEvents:
        return ResponseEvents(self._response, self._clock)


def chat_of(request: ResponseRequest, tools: Toolbox) -> dict[str, Any]:
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
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logprobs": request.wants_logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        "response_format": text.format.for_chat() if text is not None and text.format is not None else None,
        "reasoning_effort": None if reasoning is None else reasoning.effort,
        "user": request.user,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
        **tools.for_chat(request.tool_choice),
        "parallel_tool_calls": None if request.parallel_tool_calls else False,
        **request.extensions,
    }
    chat: dict[str, Any] = without_nulls(body)
    return chat
