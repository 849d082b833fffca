"""Whether events of a stream have content for a client, or only open its answer. Pure.

An engine may open an answer before it computes anything: with a role, with the answer's id, with empty parts. A request
that has been sent no more than that can still be given to another worker, and its first token is still to come.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from baton_serve.router.upstream.events import DATA, END, data_of

_EVENT: Final = b"event:"
#: Before the text of a choice, as engines write it. In a text its quotes would be escaped.
_CONTENT_KEY: Final = b'"content":"'
_TEXT_KEY: Final = b'"text":"'
_QUOTE: Final = ord('"')
#: The events of ``/v1/responses`` and ``/v1/messages`` that come before the first content.
_OPENING: Final = frozenset(
    {
        b"response.created",
        b"response.queued",
        b"response.in_progress",
        b"response.output_item.added",
        b"response.content_part.added",
        b"response.reasoning_part.added",
        b"message_start",
        b"content_block_start",
        b"ping",
    }
)
#: What a choice has with its first token, at the latest with its last event.
_CONTENT: Final = ("text", "logprobs", "finish_reason")


def has_content(events: bytes) -> bool:
    """Whether any of these whole events has text, part of a tool call and so on, or ends the answer."""
    if events.find(_EVENT) < 0 and (_has_text(events, _CONTENT_KEY) or _has_text(events, _TEXT_KEY)):
        return True  # nearly always, and no JSON has been decoded
    return events.find(DATA[:-1]) >= 0 and any(_has_content(event) for event in events.split(END))


def _has_text(events: bytes, key: bytes) -> bool:
    at = events.find(key)
    while at >= 0:
        end = at + len(key)
        if end < len(events) and events[end] != _QUOTE:
            return True
        end = events.find(END, end)  # it is an empty one, beside a role; the next event may have more
        at = events.find(key, end) if end >= 0 else -1
    return False


def _has_content(event: bytes) -> bool:
    data = data_of(event)
    if data is None:  # no client is told of it
        return False
    for line in event.split(b"\n"):
        if line.startswith(_EVENT):
            return line[len(_EVENT) :].strip() not in _OPENING
    return _is_content(data)


def _is_content(data: bytes) -> bool:
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:  # [DONE], or what only the client understands
        return True
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    return not (isinstance(choices, list) and choices) or any(map(_says_something, choices))


def _says_something(choice: Any) -> bool:
    if not isinstance(choice, dict) or any(choice.get(name) for name in _CONTENT):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
