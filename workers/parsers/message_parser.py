"""Reads one answer, piece by piece, into content, reasoning and tool calls. Pure: what comes out is independent of the
pieces, so two workers that read the same text agree.

How a family of models writes these is data (``families``); the state machine is ``transformers``'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from baton_serve.workers.parsers.json_end import JsonEnd

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplate

#: Characters at the end of an answer in which the mark must be that ends its last call.
_TAIL_CHARS = 512
#: What ends the name of a call that is one part.
_NAME_ENDS = re.compile(r"[\s\[{<`]")


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
    some = list(deltas)
    return MessageDelta(
        "".join(delta.reasoning for delta in some),
        "".join(delta.content for delta in some),
        [call for delta in some for call in delta.calls],
    )


class MessageParser:
    """Add text with ``feed``, end with ``finish``.

    ``begun``: the end of the prompt from where the answer begins. ``tools``: as in the request, for the types of
    arguments that are not written as JSON.
    """

    def __init__(self, template: ResponseTemplate, begun: str, tools: Sequence[dict[str, Any]] | None) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser = ResponseParser(template, prefix=begun, tools=None if tools is None else list(tools))
        self._implicit = template.implicit
        #: Characters at the end of ``begun`` that may begin a mark. They are the client's, and no part of the answer.
        self._num_held = _num_held(template, begun)
        self._calls = template.fields.get("calls")
        self._tells_calls = tools is not None
        self._name = ""
        #: Whether a name has ended and nothing has come since but what may be the mark before its arguments.
        self._is_between = False
        #: Of a call that is one part: whether its name has ended.
        self._has_name = False
        #: The text of calls that are read when all of it has come.
        self._unread: list[str] = []
        self._tail = ""
        #: Of each call that has begun, how far its arguments are.
        self._arguments: list[JsonEnd] = []

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return len(self._arguments)

    def is_whole(self, index: int) -> bool:
        """Whether all arguments of a call have come."""
        return self._arguments[index].ended

    def feed(self, text: str) -> MessageDelta:
        """Add text; returns what is certain of it."""
        delta = MessageDelta()
        self._tail = (self._tail + text)[-_TAIL_CHARS:]
        self._take(self._parser.feed(text), delta, ended=False)
        return delta

    def finish(self) -> MessageDelta:
        """The text has ended: return what was held back. A call whose name is not complete is dropped."""
        delta = MessageDelta()
        self._take(self._parser.finalize()[1], delta, ended=True)
        return delta

    def _take(self, events: Iterable[dict[str, Any]], delta: MessageDelta, *, ended: bool) -> None:
        for event in events:
            held = self._pass_held(event) if self._num_held else 0
            match event["type"], event["field"]:
                case "region_chunk", "content" if not (ended and self._is_between):
                    delta.content += event["text"][held:]
                    self._is_between = False
                case "region_chunk", "reasoning":
                    delta.reasoning += event["text"][held:]
                case "region_chunk", "name":
                    self._name += event["text"]
                case "region_close", "name":
                    name, self._name = self._name.strip(), ""
                    if not ended:
                        self._begin(delta, name)
                        self._is_between = True
                case "region_chunk", "arguments":
                    self._is_between = False
                    self._add(delta, event["text"])
                case "region_open", "call":
                    self._name, self._has_name = "", False
                case "region_chunk", "call":
                    self._add_to_call(delta, event["text"])
                case "region_chunk", "calls":
                    self._unread.append(event["text"])
                case "region_close", "calls":
                    text, self._unread = "".join(self._unread), []
                    self._whole(delta, event["value"], text, is_cut=ended and not self._has_ended())

    def _pass_held(self, event: dict[str, Any]) -> int:
        """How many of the event's characters are not the answer's. What has become a mark is in no event."""
        num = min(self._num_held, len(event.get("text", "")))
        is_text = event["type"] == "region_chunk" or (event["type"], event["field"]) == ("region_open", self._implicit)
        self._num_held = self._num_held - num if is_text else 0
        return num

    def _add_to_call(self, delta: MessageDelta, text: str) -> None:
        """Add to a call that is one part. What is between its name and its arguments is passed over."""
        if not self._has_name:
            text = text if self._name else text.lstrip()
            end = _NAME_ENDS.search(text)
            self._name += text if end is None else text[: end.start()]
            if end is None:
                return
            self._has_name = True
            self._begin(delta, self._name.strip())
            text = text[end.start() :]
        if self._tells_calls and not self._arguments[-1].begun:
            text = text[text.find("{") :] if "{" in text else ""
        self._add(delta, text)

    def _begin(self, delta: MessageDelta, name: str, arguments: str = "") -> None:
        if self._tells_calls:
            self._arguments.append(JsonEnd())
            delta.calls.append(CallDelta(self.num_calls - 1, name, self._arguments[-1].inside(arguments)))

    def _add(self, delta: MessageDelta, text: str) -> None:
        """Add to the arguments of the last call what is not behind their end, such as half of the mark that ends it."""
        if self._arguments and (inside := self._arguments[-1].inside(text)):
            delta.calls.append(CallDelta(self.num_calls - 1, None, inside))

    def _whole(self, delta: MessageDelta, value: Any, text: str, *, is_cut: bool) -> None:
        """Calls that were read to their end. What cannot be read is content, as the client then sees what it was.

        ``is_cut``: the end is the answer's, and was not written.
        """
        try:
            read = json.loads(value) if isinstance(value, str) else value
            found = [_call(each) for each in (read if isinstance(read, list) else [read])]
        except (ValueError, RecursionError):
            found = [None]
        if None in found:
            delta.content += text.strip()
            return
        for name, arguments in filter(None, found):
            # Without its last brace, arguments of which some may be missing are seen to be cut off. JSON is not cut
            # off: it could not have been read.
            self._begin(delta, name, arguments[:-1] if is_cut and not isinstance(value, str) else arguments)

    def _has_ended(self) -> bool:
        """Whether the answer's last characters are the mark that ends calls."""
        ends = None if self._calls is None or self._calls.content == "json" else self._calls.close_re
        return ends is None or any(match.end() == len(self._tail) for match in ends.finditer(self._tail))


def _num_held(template: ResponseTemplate, begun: str) -> int:
    from transformers.utils.chat_parsing import ResponseParser

    if not begun:
        return 0
    try:
        events = ResponseParser(template, prefix=begun).finalize()[1]
    except ValueError:  # a call in a model's own template, which is not whole
        return 0
    return sum(len(event.get("text", "")) for event in events)


def _call(value: Any) -> tuple[str, str] | None:
    """Name and arguments (JSON) of a call; None: it is none. Raises RecursionError."""
    if not isinstance(value, dict):
        return None
    function = value.get("function", value)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments", function.get("parameters", {}))
    return function["name"], arguments if isinstance(arguments, str) else _json(arguments)


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers of more than 64 bits, or halves of characters, which the library lets through
        return json.dumps(value, separators=(",", ":"))
