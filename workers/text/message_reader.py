"""The message of one chat answer, for a model whose reasoning and tool calls are understood. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from baton_serve.workers.parsers.message_parser import CallDelta, MessageDelta, MessageParser, joined

#: Bytes of the hash in the id of a call.
_ID_BYTES = 12


class MessageReader:
    """Reads the text of one answer, and makes OpenAI's objects of what it has read.

    All workers of a request give a call the same id, so that a stream goes on where another worker's has broken off.
    ``calls_end``: whether an answer with calls has ended because of them. When the client named the function, OpenAI
    says that it has not. ``one_call``: further calls are left out. Reasoning has the name that DeepSeek gave it, which
    most clients know, and the one that vLLM gives it since 0.16.
    """

    def __init__(
        self, parser: MessageParser, request_id: str, *, calls_end: bool = True, one_call: bool = False
    ) -> None:
        self._parser = parser
        self._request_id = request_id
        self._calls_end = calls_end
        self._one_call = one_call
        #: Tokens up to the last one that has shown reasoning.
        self.num_reasoning_tokens = 0

    def read(self, text: str, num_tokens: int, *, ended: bool) -> MessageDelta:
        """Add the text of one token; returns what is certain of the message. ``ended``: it is the last text.

        ``num_tokens``: the tokens so far. Whoever reads a token first, the same ones are counted as reasoning.
        """
        delta = self._parser.feed(text) if text else MessageDelta()
        if ended:
            delta = joined((delta, self._parser.finish()))
        if delta.reasoning:
            self.num_reasoning_tokens = num_tokens
        if self._one_call:
            delta.calls = [call for call in delta.calls if call.index == 0]
        return delta

    def finish_reason(self, reason: str) -> str:
        """OpenAI's reason for the end of an answer that ended for ``reason``. Ask after its last text.

        An answer that a stop string or a token has ended inside a call is not one that ended because of its calls.
        """
        return "tool_calls" if reason == "stop" and self._calls_end and self._has_whole_calls() else reason

    def _has_whole_calls(self) -> bool:
        """Whether there are calls, and the last one that is shown has all its arguments."""
        num_calls = self._parser.num_calls
        return num_calls > 0 and self._parser.is_whole(0 if self._one_call else num_calls - 1)

    def delta_body(self, delta: MessageDelta) -> dict[str, Any]:
        """``delta`` of a chunk."""
        body: dict[str, Any] = {}
        if delta.reasoning:
            body["reasoning_content"] = body["reasoning"] = delta.reasoning
        if delta.content:
            body["content"] = delta.content
        if delta.calls:
            body["tool_calls"] = [self._part(call) for call in delta.calls]
        return body

    def message_body(self, delta: MessageDelta) -> dict[str, Any]:
        """``message`` of a whole answer."""
        body: dict[str, Any] = {"role": "assistant", "content": delta.content, "refusal": None, "annotations": []}
        if delta.reasoning:
            body["reasoning_content"] = body["reasoning"] = delta.reasoning
        if delta.calls:
            body["content"] = delta.content or None
            body["tool_calls"] = [
                {"id": self._id(call.index), "type": "function"}
                | {"function": {"name": call.name, "arguments": call.arguments}}
                for call in delta.whole_calls()
            ]
        return body

    def part_body(self, delta: MessageDelta) -> dict[str, Any]:
        """``message`` of an answer that is a part of the client's. Its calls are parts too, as in a chunk."""
        return {"role": "assistant", "content": "", "refusal": None, "annotations": [], **self.delta_body(delta)}

    def _part(self, call: CallDelta) -> dict[str, Any]:
        if call.name is None:
            return {"index": call.index, "function": {"arguments": call.arguments}}
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": call.index, "id": self._id(call.index), "type": "function", "function": function}

    def _id(self, index: int) -> str:
        return "call_" + blake2b(f"{self._request_id}:{index}".encode(), digest_size=_ID_BYTES).hexdigest()
