"""How large a conversation may be, counted before each part of it costs validation and a turn of the template. Pure."""

from __future__ import annotations

from typing import Any

from protocol.errors import BadRequestError

#: Text parts for each message that is allowed, counted over all messages together.
PARTS_PER_MESSAGE = 4


def check_num_messages(body: dict[str, Any], max_messages: int) -> None:
    """Raise BadRequestError for too many messages or parts; anything else that is wrong is left to validation."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    if len(messages) > max_messages:
        raise _too_many("messages", max_messages)
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    max_parts = PARTS_PER_MESSAGE * max_messages
    if sum(len(content) for content in contents if isinstance(content, list)) > max_parts:
        raise _too_many("parts of messages", max_parts)


def _too_many(what: str, limit: int) -> BadRequestError:
    return BadRequestError(f"At most {limit} {what} are allowed.", param="messages", code="array_above_max_length")
