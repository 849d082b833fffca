"""The message that a model's answer is, and its blocks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from baton_serve.router.dialects.chat_answers import Usage
from baton_serve.router.dialects.parts import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.router.dialects.parts import Part
    from baton_serve.router.dialects.port import Ending

#: What the schemas of Anthropic's answers demand, of which there is nothing here: containers and refusals.
_NONE = {"container": None, "stop_details": None}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageObject:
    """The messages that answer one request, at whatever stage."""

    def __init__(self, model: str, request_id: str, *, edits_context: bool = False) -> None:
        """``edits_context``: the client has said how the history is to be shortened."""
        self.request_id = request_id
        #: What became of that: nothing.
        self.edited: dict[str, Any] = {"context_management": {"applied_edits": []}} if edits_context else {}
        self._same = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}

    def begun(self, usage: Usage | None) -> dict[str, Any]:
        """The message before its first block. ``usage``: what is known of the prompt."""
        no_end = {"stop_reason": None, "stop_sequence": None, **_NONE}
        return {**self._same, "content": [], **no_end, "usage": usage_of(usage)}

    def ended(self, parts: Sequence[Part], ending: Ending) -> dict[str, Any]:
        """The whole message."""
        blocks = [block_of(part) for part in parts]
        end = {**ended_by(parts, ending), "usage": usage_of(ending.usage), **self.edited}
        return {**self._same, "content": blocks, **end}


def block_of(part: Part) -> dict[str, Any]:
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


def ended_by(parts: Sequence[Part], ending: Ending) -> dict[str, Any]:
    """Why the answer ended. A chat says of a call that the client has forced that the answer ended by itself, and also
    of one that the client's stop token has cut off.
    """
    reason = _REASONS.get(ending.finish_reason)
    if reason is None:
        calls = [part for part in parts if part.kind is Kind.CALL]
        reason = "tool_use" if calls and calls[-1].is_complete else "end_turn"
    stop = ending.stop_reason if isinstance(ending.stop_reason, str) else None
    return {"stop_reason": reason if stop is None else "stop_sequence", "stop_sequence": stop, **_NONE}


def usage_of(usage: Usage | None) -> dict[str, Any]:
    """The counts of tokens of a whole message, with what it says of how they were served."""
    created = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    return {**counts_of(usage), "cache_creation": created, "inference_geo": None, "service_tier": "standard"}


def counts_of(usage: Usage | None) -> dict[str, Any]:
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
