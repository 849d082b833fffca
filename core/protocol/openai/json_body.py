"""Parses the JSON of a body, and counts its parts before any of them is built.

A body of 16 MB can hold half a million messages, a million keys, or endless brackets in a field that is not used.
Building all of them blocks the event loop for a second or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

from baton_serve.core.protocol.errors import BadRequestError

#: Text parts for each message that is allowed, counted over all messages together.
PARTS_PER_MESSAGE: Final = 4
#: Objects, arrays and keys for each message. A message with all of OpenAI's fields has 12, each part at most 6.
NODES_PER_MESSAGE: Final = 36
#: Objects, arrays and keys outside messages: ``logit_bias`` alone may have 1024 keys.
MORE_NODES: Final = 4096
#: OpenAI takes 4; editors' completions send a dozen; vLLM has no bound. Each is looked for at every token.
MAX_STOP_STRINGS: Final = 64

#: How orjson begins what it says of a body for which it found no memory.
_NO_MEMORY: Final = "Not enough memory"
_TOO_MANY: Final = "array_above_max_length"


@dataclass(frozen=True)
class BodyLimits:
    """Bounds of one body. ``max_values``: numbers, strings and so on, mostly the token ids of a prompt.

    ``more_nodes``: objects, arrays and keys in addition to the ones in messages.
    """

    max_messages: int
    max_values: int
    more_nodes: int = MORE_NODES
    max_stop_strings: int = MAX_STOP_STRINGS

    @property
    def max_nodes(self) -> int:
        """The most objects, arrays and keys in a whole body."""
        return self.more_nodes + NODES_PER_MESSAGE * self.max_messages

    def check_bytes(self, raw: bytes) -> None:
        """Raise BadRequestError for JSON that would be too much to build. Anything else is left to the parser."""
        # A value and its comma, and a node, take two bytes at least: "0,", "[]". More brackets in a row than that are
        # nested too deeply to parse.
        if len(raw) < 2 * self.max_values and len(raw) <= 2 * self.max_nodes:
            return
        # This counts the text of strings too, so the count is never too low, and nearly always within the bounds.
        if _num_nodes(raw) > self.max_nodes or _count(raw, b",") >= self.max_values:
            self._check_outside_strings(raw)

    def check_messages(self, body: dict[str, Any]) -> None:
        """Raise BadRequestError for too many messages or parts; anything else that is wrong is left to validation."""
        messages = body.get("messages")
        if not isinstance(messages, list):
            return
        if len(messages) > self.max_messages:
            raise _too_many("messages", self.max_messages)
        num_parts = 0
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list):
                num_parts += len(content)
        max_parts = PARTS_PER_MESSAGE * self.max_messages
        if num_parts > max_parts:
            raise _too_many("parts of messages", max_parts)

    def check_stop(self, body: dict[str, Any]) -> None:
        """Raise BadRequestError for too many stop strings; anything else that is wrong is left to validation."""
        stop = body.get("stop")
        if isinstance(stop, list) and len(stop) > self.max_stop_strings:
            raise BadRequestError(
                f"At most {self.max_stop_strings} stop strings are allowed, got {len(stop)}.",
                param="stop",
                code=_TOO_MANY,
            )

    def _check_outside_strings(self, raw: bytes) -> None:
        # In JSON backslashes are in strings only, so every quote that remains begins or ends a string.
        bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Each string is a key or a value. Splitting at more quotes would cost as much as building the body.
        if bare.count(b'"') // 2 > self.max_nodes + self.max_values:
            raise _too_large(f"{self.max_nodes + self.max_values} strings")
        outside = b"".join(bare.split(b'"')[::2])
        if _num_nodes(outside) > self.max_nodes:
            raise _too_large(f"{self.max_nodes} objects, arrays and keys")
        if _count(outside, b",") >= self.max_values:
            raise _too_large(f"{self.max_values} values")


def parse_body(raw: bytes, limits: BodyLimits) -> dict[str, Any]:
    """The body as an object; raises BadRequestError for anything else, and for a body beyond the limits, and
    MemoryError.
    """
    limits.check_bytes(raw)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith(_NO_MEMORY):
            raise MemoryError from None
        why = "it is nested too deeply" if error.msg.startswith("depth limit") else str(error)
        raise BadRequestError(
            f"We could not parse the JSON body of your request: {why}.", code="invalid_json"
        ) from None
    if not isinstance(body, dict):
        raise BadRequestError("The JSON body of your request must be an object.", code="invalid_json")
    limits.check_messages(body)
    return body


def _num_nodes(raw: bytes) -> int:
    return _count(raw, b"{") + _count(raw, b"[") + _count(raw, b":")


def _count(raw: bytes, byte: bytes) -> int:
    """As ``raw.count(byte)``, which looks at each byte by itself; ``replace`` searches with ``memchr``."""
    return len(raw) - len(raw.replace(byte, b""))


def _too_large(what: str) -> BadRequestError:
    return BadRequestError(f"The JSON body of your request has more than {what}.", code=_TOO_MANY)


def _too_many(what: str, limit: int) -> BadRequestError:
    return BadRequestError(f"At most {limit} {what} are allowed.", param="messages", code=_TOO_MANY)
