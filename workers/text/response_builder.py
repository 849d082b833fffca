"""OpenAI's response bodies and stream chunks. Pure.

The chunks of a stream differ in a few bytes only, so their common part is rendered once per stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import orjson

if TYPE_CHECKING:
    from core.protocol.handoff import KVTransferParams

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Usage:
    """The token counts of one request."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int

    def body(self) -> dict[str, Any]:
        """OpenAI's ``usage``."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


class ResponseBuilder:
    """Renders the answer to one request. With ``show_usage`` a stream ends with a usage chunk, and all other chunks
    have ``"usage": null``.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, request_id: str, model: str, created: int, fingerprint: str, *, show_usage: bool) -> None:
        self._same = {
            "id": self.id_prefix + request_id,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._show_usage = show_usage
        tail = b',"usage":null}\n\n' if show_usage else b"}\n\n"
        head = orjson.dumps({"object": self.chunk_object, **self._same})
        self._head = b"data: " + head[:-1] + b',"choices":'
        self._tail = tail

    def whole(
        self,
        text: str,
        finish_reason: str,
        logprobs: dict[str, Any] | None,
        usage: Usage,
        params: KVTransferParams | None = None,
        token_ids: list[int] | None = None,
    ) -> bytes:
        """The body of an answer that is not streamed."""
        choice = {"index": 0, **self._content(text), "logprobs": logprobs, "finish_reason": finish_reason}
        if token_ids is not None:
            choice["token_ids"] = token_ids
        body = {"object": self.whole_object, **self._same, "choices": [choice], "usage": usage.body()}
        if params is not None:
            body["kv_transfer_params"] = msgspec.to_builtins(params)
        return orjson.dumps(body)

    def opening(self) -> bytes:
        """The first chunk of a stream, before any text."""
        return b""

    def text(self, text: str, logprobs: dict[str, Any] | None) -> bytes:
        """A chunk of text."""
        shown = b"null" if logprobs is None else orjson.dumps(logprobs)
        return b"".join((self._head, self._delta(text), shown, b',"finish_reason":null}]', self._tail))

    def closing(self, finish_reason: str, usage: Usage) -> bytes:
        """The last chunks: the finish reason, the usage if the client wants it, and ``[DONE]``."""
        reason = orjson.dumps(finish_reason)
        last = b"".join((self._head, self._last_delta(), b'null,"finish_reason":', reason, b"}]", self._tail))
        if not self._show_usage:
            return last + DONE
        return b"".join((last, self._head, b'[],"usage":', orjson.dumps(usage.body()), b"}\n\n", DONE))

    def _content(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, text: str) -> bytes:
        """A chunk's JSON from the bracket of ``choices`` up to the value of ``logprobs``."""
        raise NotImplementedError

    def _last_delta(self) -> bytes:
        raise NotImplementedError


class ChatResponseBuilder(ResponseBuilder):
    """``/v1/chat/completions``."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> bytes:
        delta = b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._head + delta + self._tail

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _delta(self, text: str) -> bytes:
        return b'[{"index":0,"delta":{"content":' + orjson.dumps(text) + b'},"logprobs":'

    def _last_delta(self) -> bytes:
        return b'[{"index":0,"delta":{},"logprobs":'


class CompletionResponseBuilder(ResponseBuilder):
    """``/v1/completions``."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> bytes:
        return b'[{"index":0,"text":' + orjson.dumps(text) + b',"logprobs":'

    def _last_delta(self) -> bytes:
        return self._delta("")
