"""The message that a model's answer is, and its blocks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.dialects.parts import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.dialects.chat_answers import Usage
    from router.dialects.parts import Part
    from router.dialects.port import Ending

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageObject:
    """The messages that answer one request, at whatever stage."""

    def __init__(self, model: str, request_id: str) -> None:
        self.request_id = request_id
        self._same = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}

    def begun(self, usage: Usage | None) -> dict[str, Any]:
        """The message before its first block. ``usage``: what is known of the prompt."""
        no_end = {"stop_reason": None, "stop_sequence": None}
        known = {"input_tokens": 0 if usage is None else usage.prompt_tokens, "output_tokens": 0}
        return {**self._same, "content": [], **no_end, "usage": known}

    def ended(self, parts: Sequence[Part], ending: Ending) -> dict[str, Any]:
        """The whole message."""
        blocks = [block_of(part) for part in parts]
        return {**self._same, "content": blocks, **ended_by(parts, ending), "usage": usage_of(ending.usage)}


def block_of(part: Part) -> dict[str, Any]:
    """The block, as far as it has come."""
    match part.kind:
        case Kind.REASONING:
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        case Kind.TEXT:
            return {"type": "text", "text": part.text}
        case Kind.CALL:
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": part.arguments or {}}


def ended_by(parts: Sequence[Part], ending: Ending) -> dict[str, Any]:
    """Why the answer ended. A chat says of a call that the client has forced that the answer ended by itself, and also
    of one that the client's stop token has cut off.
    """
    reason = _REASONS.get(ending.finish_reason)
    if reason is None:
        calls = [part for part in parts if part.kind is Kind.CALL]
        reason = "tool_use" if calls and calls[-1].is_complete else "end_turn"
    stop = ending.stop_reason if isinstance(ending.stop_reason, str) else None
    return {"stop_reason": reason if stop is None else "stop_sequence", "stop_sequence": stop}


def usage_of(usage: Usage | None) -> dict[str, Any]:
    """The counts of tokens. What was cached is no input, as Anthropic counts."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
