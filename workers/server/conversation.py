"""How large a conversation may be, counted before each part of it costs validation and a turn of the template. Pure."""

from __future__ import annotations

from typing import Any

from protocol.errors import BadRequestError

#: Messages of one request.
MAX_MESSAGES = 2048
#: Text parts of all of its messages together.
MAX_PARTS = 4 * MAX_MESSAGES


def check_num_messages(body: dict[str, Any]) -> None:
    """Raise BadRequestError for too many messages or parts; anything else that is wrong is left to validation."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    if len(messages) > MAX_MESSAGES:
        raise _too_many("messages", MAX_MESSAGES)
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    if sum(len(content) for content in contents if isinstance(content, list)) > MAX_PARTS:
        raise _too_many("parts of messages", MAX_PARTS)


def _too_many(what: str, limit: int) -> BadRequestError:
    return BadRequestError(f"At most {limit} {what} are allowed.", param="messages", code="array_above_max_length")
