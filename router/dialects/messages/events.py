"""Writes a message as a stream of events. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.router.dialects.messages.answer import block_of, counts_of, ended_by
from baton_serve.router.dialects.messages.errors import error_body
from baton_serve.router.dialects.parts import Kind, Part
from baton_serve.router.upstream.events import named_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.core.protocol.errors import ApiError
    from baton_serve.router.dialects.chat_answers import Usage
    from baton_serve.router.dialects.messages.answer import MessageObject
    from baton_serve.router.dialects.port import Ending

#: The type of a delta, and its field.
_DELTAS = {
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.TEXT: ("text_delta", "text"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}


class MessageEvents:
    """Implements ``EventWriter``."""

    def __init__(self, message: MessageObject) -> None:
        self._message = message

    def begin(self, created: int, usage: Usage | None) -> bytes:
        """See ``EventWriter``."""
        return _event("message_start", message=self._message.begun(usage))

    def open(self, part: Part) -> bytes:
        """See ``EventWriter``."""
        return _event("content_block_start", index=part.index, content_block=block_of(part))

    def add(self, part: Part, piece: str, tokens: Sequence[dict[str, Any]]) -> bytes:
        """See ``EventWriter``."""
        kind, name = _DELTAS[part.kind]
        return _event("content_block_delta", index=part.index, delta={"type": kind, name: piece})

    def close(self, part: Part) -> bytes:
        """See ``EventWriter``."""
        return _event("content_block_stop", index=part.index)

    def end(self, parts: Sequence[Part], ending: Ending) -> bytes:
        """See ``EventWriter``."""
        usage, edited = counts_of(ending.usage), self._message.edited
        last = _event("message_delta", delta=ended_by(parts, ending), usage=usage, **edited)
        return last + _event("message_stop")

    def fail(self, parts: Sequence[Part], error: ApiError) -> bytes:
        """See ``EventWriter``."""
        return named_event(error_body(error, self._message.request_id))


def _event(name: str, **fields: Any) -> bytes:
    return named_event({"type": name, **fields})
