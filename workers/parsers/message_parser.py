"""Reads one answer, piece by piece, into content, reasoning and tool calls. Pure: what comes out is independent of the
pieces, so two workers that read the same text agree.

How a family of models writes these is data (``formats``); the state machine is ``transformers``'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from workers.parsers.deltas import CallDelta, MessageDelta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers.utils.chat_parsing.response_templates import ResponseTemplate


class MessageParser:
    """Add text with ``feed``, end with ``finish``.

    ``begun``: the end of the prompt from where the answer begins. ``tools``: as in the request, for the types of
    arguments that are not written as JSON.
    """

    def __init__(self, template: ResponseTemplate, begun: str, tools: Sequence[dict[str, Any]] | None) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser = ResponseParser(template, prefix=begun, tools=None if tools is None else list(tools))
        self._tells_calls = tools is not None
        self._name = ""
        #: Calls that have begun.
        self.num_calls = 0

    def feed(self, text: str) -> MessageDelta:
        """Add text; returns what is certain of it."""
        delta = MessageDelta()
        self._take(self._parser.feed(text), delta, ended=False)
        return delta

    def finish(self) -> MessageDelta:
        """The text has ended: return what was held back. A call whose name is not complete is dropped."""
        delta = MessageDelta()
        self._take(self._parser.finalize()[1], delta, ended=True)
        return delta

    def _take(self, events: Iterable[dict[str, Any]], delta: MessageDelta, *, ended: bool) -> None:
        for event in events:
            match event["type"], event["field"]:
                case "region_chunk", "content":
                    delta.content += event["text"]
                case "region_chunk", "reasoning":
                    delta.reasoning += event["text"]
                case "region_chunk", "name":
                    self._name += event["text"]
                case "region_close", "name":
                    name, self._name = self._name.strip(), ""
                    if not ended:
                        self._begin(delta, name)
                case "region_chunk", "arguments" if self._tells_calls and self.num_calls:
                    delta.calls.append(CallDelta(self.num_calls - 1, None, event["text"]))
                case "region_close", "calls":
                    self._whole(delta, event["value"])

    def _begin(self, delta: MessageDelta, name: str, arguments: str = "") -> None:
        if self._tells_calls:
            delta.calls.append(CallDelta(self.num_calls, name, arguments))
            self.num_calls += 1

    def _whole(self, delta: MessageDelta, value: Any) -> None:
        """Calls that were read to their end. What cannot be read is content, as the client then sees what it was."""
        found = [_call(each) for each in (value if isinstance(value, list) else [value])]
        for call in found:
            if call is None:
                delta.content += value if isinstance(value, str) else orjson.dumps(value).decode()
                return
        for name, arguments in filter(None, found):
            self._begin(delta, name, arguments)


def _call(value: Any) -> tuple[str, str] | None:
    """Name and arguments (JSON) of a call; None: it is none."""
    if not isinstance(value, dict):
        return None
    function = value.get("function", value)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments", function.get("parameters", {}))
    return function["name"], arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
