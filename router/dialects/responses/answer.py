"""The response object, with the items that a model's answer is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.dialects.chat_answers import Usage
from baton_serve.router.dialects.port import Ending, Kind, Part
from baton_serve.router.dialects.responses.calls import CallShape
from baton_serve.router.dialects.responses.request import ResponseRequest
from baton_serve.router.dialects.responses.toolbox import Toolbox
from baton_serve.router.dialects.responses.tools import Tool

#: What ids of items begin with.
_ID_PREFIXES = {Kind.REASONING: "rs", Kind.TEXT: "msg"}
#: OpenAI's codes for a response that failed are a closed list; its message says what it was.
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
_SERVER_ERROR = "server_error"


class ResponseObject:
    """The response object of one request, at every stage; it repeats the client's parameters."""

    def __init__(
        self,
        request: ResponseRequest,
        given: dict[str, Any],
        request_id: str,
        tools: Toolbox,
        defaults: Mapping[str, float],
    ) -> None:
        """``given``: the body that ``request`` was made from. ``defaults``: what the model samples with where that says
        nothing.
        """
        self._request_id = request_id
        self._tools = tools
        self._fields = _fields(request, given, f"resp_{request_id}", defaults)

    def item_id(self, part: Part) -> str:
        """The id of the item that ``part`` becomes."""
        prefix = _ID_PREFIXES.get(part.kind) or self.shape(part).id_prefix
        return f"{prefix}_{self._request_id}_{part.index}"

    def shape(self, part: Part) -> CallShape:
        """How a call looks."""
        return self._tools.called(part.name).shape

    def item(self, part: Part, status: str) -> dict[str, Any]:
        """The item, as far as it has come. ``status`` is OpenAI's."""
        item: dict[str, Any] = {"id": self.item_id(part), "status": status}
        match part.kind:
            case Kind.REASONING:
                return {**item, "type": "reasoning", "summary": [], "content": [content_of(part)]}
            case Kind.TEXT:
                return {**item, "type": "message", "role": "assistant", "content": [content_of(part)]}
            case Kind.CALL:
                return {**item, "call_id": part.call_id, **self._tools.called(part.name).call(part.text)}

    def begun(self, created: int) -> dict[str, Any]:
        """The response before its first item."""
        return self._body(created, "in_progress", [])

    def ended(self, created: int, now: int, parts: Sequence[Part], ending: Ending) -> dict[str, Any]:
        """The response when the answer is over. ``now``: Unix seconds, as ``created``, which is of another clock."""
        status = _status(is_complete=ending.is_complete)
        body = self._body(created, status, [self.item(part, _status(is_complete=part.is_complete)) for part in parts])
        if ending.is_complete:
            body["completed_at"] = max(created, now)
        else:
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        return {**body, "usage": None if ending.usage is None else _usage(ending.usage)}

    def failed(self, created: int, parts: Sequence[Part], error: ApiError) -> dict[str, Any]:
        """The response when the answer has broken off."""
        body = self._body(created, "failed", [self.item(part, "incomplete") for part in parts])
        return {**body, "error": {"code": _CODES.get(error.status, _SERVER_ERROR), "message": error.message}}

    def _body(self, created: int, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._fields, "created_at": created, "status": status, "output": output}


def content_of(part: Part) -> dict[str, Any]:
    """The only content of a message or of reasoning, as far as it has come."""
    if part.kind is Kind.REASONING:
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": list(map(_logprob, part.tokens))}


def _status(*, is_complete: bool) -> str:
    return "completed" if is_complete else "incomplete"


def _logprob(token: dict[str, Any]) -> dict[str, Any]:
    """A token's logprob as a chat has it, which is nearly how a response has it."""
    return {**_with_bytes(token), "top_logprobs": list(map(_with_bytes, token.get("top_logprobs") or ()))}


def _with_bytes(token: dict[str, Any]) -> dict[str, Any]:
    return {"token": token.get("token", ""), "bytes": token.get("bytes") or [], "logprob": token.get("logprob")}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _fields(
    request: ResponseRequest, given: dict[str, Any], response_id: str, defaults: Mapping[str, float]
) -> dict[str, Any]:
    """The fields that do not depend on the answer. Missing ones have the values by which it is made."""
    text = given.get("text") or {}
    return {
        "id": response_id,
        "object": "response",
        "background": False,
        "completed_at": None,
        "error": None,
        "frequency_penalty": request.frequency_penalty or 0,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": given.get("metadata") or {},
        "model": request.model,
        "parallel_tool_calls": request.parallel_tool_calls,
        "presence_penalty": request.presence_penalty or 0,
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": request.reasoning and request.reasoning.effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": defaults.get("temperature", 1.0) if request.temperature is None else request.temperature,
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tool_choice": given.get("tool_choice") or "auto",
        "tools": [
            _tool(*pair)
            for pair in zip(request.tools or (), given.get("tools") or (), strict=True)
            if any(pair[0].offered())
        ],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": defaults.get("top_p", 1.0) if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
    }


def _tool(tool: Tool, given: dict[str, Any]) -> dict[str, Any]:
    """A tool as the client gave it; a function with all that the clients' schemas demand."""
    return {"description": None, "parameters": None, "strict": None, **given} if tool.type == "function" else given
