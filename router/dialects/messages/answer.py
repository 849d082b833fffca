"""The message that a model's answer is, whole or as events, and errors as Anthropic's clients read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import BaseModel, Field

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.dialects.chat_answers import Usage
from baton_serve.router.dialects.port import Ending, EventWriter, Kind, Part
from baton_serve.router.upstream.events import named_event

#: What the schemas of Anthropic's answers demand, of which there is nothing here: containers and refusals.
_NONE = {"container": None, "stop_details": None}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
#: The type of a delta, and its field.
_DELTAS = {
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.TEXT: ("text_delta", "text"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}
#: Anthropic's types of errors, by status. A client's mistake with any other status is an invalid request.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    499: "api_error",
    504: "timeout_error",
}


class MessageObject(EventWriter):
    """The message that answers one request, at every stage."""

    def __init__(self, model: str, request_id: str, *, edits_context: bool) -> None:
        """``edits_context``: the client has said how the history is to be shortened."""
        self._request_id = request_id
        #: The answer to that: nothing was shortened.
        self._edited: dict[str, Any] = {"context_management": {"applied_edits": []}} if edits_context else {}
        self._same = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}

    def ended(self, parts: Sequence[Part], ending: Ending) -> dict[str, Any]:
        """The whole message."""
        blocks = [_block(part) for part in parts]
        end = {**_ended_by(parts, ending), "usage": _usage(ending.usage), **self._edited}
        return {**self._same, "content": blocks, **end}

    def begin(self, created: int, usage: Usage | None) -> bytes:
        no_end = {"stop_reason": None, "stop_sequence": None, **_NONE}
        return _event("message_start", message={**self._same, "content": [], **no_end, "usage": _usage(usage)})

    def open(self, part: Part) -> bytes:
        return _event("content_block_start", index=part.index, content_block=_block(part))

    def add(self, part: Part, piece: str, tokens: Sequence[dict[str, Any]]) -> bytes:
        kind, name = _DELTAS[part.kind]
        return _event("content_block_delta", index=part.index, delta={"type": kind, name: piece})

    def close(self, part: Part) -> bytes:
        return _event("content_block_stop", index=part.index)

    def end(self, parts: Sequence[Part], ending: Ending) -> bytes:
        delta, usage = _ended_by(parts, ending), _counts(ending.usage)
        return _event("message_delta", delta=delta, usage=usage, **self._edited) + _event("message_stop")

    def fail(self, parts: Sequence[Part], error: ApiError) -> bytes:
        return named_event(error_body(error, self._request_id))


def _event(name: str, **fields: Any) -> bytes:
    return named_event({"type": name, **fields})


def _block(part: Part) -> dict[str, Any]:
    """The block, as far as it has come."""
    match part.kind:
        case Kind.REASONING:
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        case Kind.TEXT:
            return {"type": "text", "text": part.text, "citations": None}
        case Kind.CALL:
            # As the model wrote it: orjson reads deeper objects than it writes.
            given = orjson.Fragment(part.text) if part.arguments else {}
            call = {"id": part.call_id, "name": part.name, "input": given}
            return {"type": "tool_use", **call, "caller": {"type": "direct"}}


def _ended_by(parts: Sequence[Part], ending: Ending) -> dict[str, Any]:
    """Why the answer ended. A chat says of a call that the client has forced that the answer ended by itself, and also
    of one that the client's stop token has cut off.
    """
    reason = _REASONS.get(ending.finish_reason)
    if reason is None:
        calls = [part for part in parts if part.kind is Kind.CALL]
        reason = "tool_use" if calls and calls[-1].is_complete else "end_turn"
    stop = ending.stop_reason if isinstance(ending.stop_reason, str) else None
    return {"stop_reason": reason if stop is None else "stop_sequence", "stop_sequence": stop, **_NONE}


def _usage(usage: Usage | None) -> dict[str, Any]:
    """The usage of a whole message: counts of tokens and of cached ones, region and service tier."""
    created = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    return {**_counts(usage), "cache_creation": created, "inference_geo": None, "service_tier": "standard"}


def _counts(usage: Usage | None) -> dict[str, Any]:
    """The counts of tokens. What was cached is no input, as Anthropic counts. None: nothing is known."""
    known = usage or Usage()
    return {
        "input_tokens": known.prompt_tokens - known.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": known.cached_tokens,
        "output_tokens": known.completion_tokens,
        "output_tokens_details": {"thinking_tokens": known.reasoning_tokens},
        "server_tool_use": None,
    }


class ErrorObject(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessagesError(BaseModel):
    """Every error of these paths, as Anthropic's clients read it."""

    type: str = Field(description="Always ``error``.")
    error: ErrorObject
    request_id: str = Field(description="As in the headers x-request-id and request-id.")


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The error as an object. The message names the parameter at fault, because there is no other place for it."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    names_it = error.param is None or error.param in error.message
    message = error.message if names_it else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def error_answer(error: ApiError, request_id: str) -> bytes:
    """The error as the whole answer."""
    return orjson.dumps(error_body(error, request_id))
