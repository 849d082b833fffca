"""The answers of chats, as workers give them: whole, and as streams in any pieces."""

from __future__ import annotations

import json
from typing import Any

CREATED = 1_700_000_000
USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 7,
    "total_tokens": 19,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def event_of(choices: list[dict[str, Any]], **more: Any) -> bytes:
    chunk = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": CREATED, "model": "m", **more}
    return b"data: " + json.dumps({**chunk, "choices": choices}).encode() + b"\n\n"


def chunk(delta: dict[str, Any], logprobs: Any = None, finish: str | None = None, **more: Any) -> bytes:
    return event_of([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish, **more}])


def role() -> bytes:
    usage = {"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12}
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return event_of([choice], usage=usage)


def says(text: str, logprobs: Any = None) -> bytes:
    return chunk({"content": text}, logprobs)


def thinks(text: str, *names: str) -> bytes:
    """Baton's workers give it two names, as here without ``names``, and other engines one of them."""
    return chunk(dict.fromkeys(names or ("reasoning_content", "reasoning"), text))


def calls(index: int, name: str, arguments: str = "") -> bytes:
    """The first fragment of a call."""
    function = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "id": f"call_{index}", "type": "function", "function": function}]})


def argues(index: int, arguments: str) -> bytes:
    """A further fragment of a call."""
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})


def ends(finish: str = "stop", stop: str | int | None = None, usage: dict[str, Any] | None = USAGE) -> bytes:
    counted = b"" if usage is None else event_of([], usage=usage)
    return chunk({}, finish=finish, stop_reason=stop) + counted + b"data: [DONE]\n\n"


def fails(message: str = "broke", code: str = "grammar_failed") -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": "response_format", "code": code}
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def tokens(*texts: str) -> dict[str, Any]:
    """Logprobs of these tokens, with one alternative each."""
    return {"content": [{**_token(text), "top_logprobs": [_token(text)]} for text in texts], "refusal": None}


def _token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "bytes": list(text.encode())}


def whole(message: dict[str, Any], finish: str = "stop", stop: str | int | None = None, logprobs: Any = None) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, "refusal": None, **message}}
    choice |= {"logprobs": logprobs, "finish_reason": finish, "stop_reason": stop}
    answer = {"id": "chatcmpl-x", "object": "chat.completion", "created": CREATED, "model": "m"}
    return json.dumps({**answer, "choices": [choice], "usage": USAGE}).encode()


def whole_call(index: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


#: The events of a thought, a text and two calls, each but the last in two pieces. The second call has no arguments yet.
THOUGHT_TEXT_AND_CALLS = [
    role(),
    thinks("I "),
    thinks("know"),
    says("On"),
    says("ward"),
    calls(0, "get", '{"a":'),
    argues(0, "1}"),
    calls(1, "put"),
]
