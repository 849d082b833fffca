"""What a piece of an answer's text adds to the message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class CallDelta:
    """A part of a tool call. ``name`` is given once, with the first part; ``arguments``: further characters of JSON."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass
class MessageDelta:
    """Additions to each part of the message; empty where there is none."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)

    def whole_calls(self) -> list[CallDelta]:
        """The calls, each in one part. For all additions of a message together."""
        parts: dict[int, list[CallDelta]] = {}
        for call in self.calls:
            parts.setdefault(call.index, []).append(call)
        return [
            CallDelta(index, some[0].name, "".join(part.arguments for part in some)) for index, some in parts.items()
        ]


def joined(deltas: Iterable[MessageDelta]) -> MessageDelta:
    """All additions together."""
    some = list(deltas)
    return MessageDelta(
        "".join(delta.reasoning for delta in some),
        "".join(delta.content for delta in some),
        [call for delta in some for call in delta.calls],
    )
