"""OpenAI's response bodies and stream chunks. Pure.

The chunks of a stream differ in a few bytes only, so their common part is rendered once per stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import orjson

from baton_serve.core.protocol.handoff import KVTransferParams

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Usage:
    """The token counts of one request."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int
    #: Of the completion; None: nobody looks for reasoning in it.
    num_reasoning_tokens: int | None = None

    def body(self) -> dict[str, Any]:
        """OpenAI's ``usage``."""
        body = {**self.counts(), "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens}}
        if self.num_reasoning_tokens is not None:
            body["completion_tokens_details"] = {"reasoning_tokens": self.num_reasoning_tokens}
        return body

    def counts(self) -> dict[str, int]:
        """The same without details, as vLLM puts it into every chunk."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
        }


@dataclass(frozen=True)
class Shown:
    """What an answer has beside text and logprobs.

    ``usage``: a stream ends with a usage chunk, and all other chunks have ``"usage": null``, or the usage so far with
    ``usage_in_chunks``. ``prompt_token_ids``: shown in the answer or at the beginning of a stream.
    """

    usage: bool = False
    usage_in_chunks: bool = False
    prompt_token_ids: Sequence[int] | None = None


class ResponseBuilder:
    """Renders the answer to one request. The token ids of a chunk are those since the last one."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    #: Whether what is shown of the prompt's tokens is in the choice, as vLLM has it, or beside the choices.
    prompt_in_choice: ClassVar[bool]

    def __init__(
        self, answer_id: str, model: str, created: int, fingerprint: str, shown: Shown, index: int = 0
    ) -> None:
        """``index``: of the choice that it renders."""
        self._index = index
        self._same = {
            "id": self.id_prefix + answer_id,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self.shown = shown
        self._prompt_token_ids = shown.prompt_token_ids
        tail = b',"usage":null}\n\n' if shown.usage else b"}\n\n"
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
        stop_reason: str | int | None = None,
        message: dict[str, Any] | None = None,
        prompt_logprobs: object | None = None,
    ) -> bytes:
        """The body of an answer that is not streamed. ``message``: of a chat, if its text was read into parts."""
        content = self._content(text) if message is None else {"message": message}
        choice = {"index": self._index, **content, "logprobs": logprobs, "finish_reason": finish_reason}
        choice["stop_reason"] = stop_reason
        if token_ids is not None:
            choice["token_ids"] = token_ids
        body = {"object": self.whole_object, **self._same, "choices": [choice], "usage": usage.body()}
        about_prompt = choice if self.prompt_in_choice else body
        if self._prompt_token_ids is not None:
            about_prompt["prompt_token_ids"] = self._prompt_token_ids
        if prompt_logprobs is not None:
            about_prompt["prompt_logprobs"] = prompt_logprobs
        if params is not None:
            body["kv_transfer_params"] = msgspec.to_builtins(params)
        return orjson.dumps(body)

    def opening(self, usage: Usage) -> bytes:
        """The first chunk of a stream, before any text."""
        return b""

    def prompt(self, text: str, logprobs: dict[str, Any] | None, usage: Usage, *, with_ids: bool) -> bytes:
        """A chunk with a part of the prompt. ``with_ids``: chunks have the ids of new tokens; this one has none."""
        return self.text(text, logprobs, [] if with_ids else None, replace(usage, num_completion_tokens=0))

    def text(
        self,
        text: str,
        logprobs: dict[str, Any] | None,
        token_ids: list[int] | None = None,
        usage: Usage | None = None,
        delta: dict[str, Any] | None = None,
    ) -> bytes:
        """A chunk of text. ``usage``: so far, for chunks that have it. ``delta``: of a chat, if its text was read into
        parts; it counts then, and not ``text``.
        """
        content = self._delta(text) if delta is None else self._parts(orjson.dumps(delta))
        shown = b"null" if logprobs is None else orjson.dumps(logprobs)
        end = b',"finish_reason":null}]' if token_ids is None else b',"finish_reason":null%b}]' % self._ids(token_ids)
        return b"".join((self._head, content, shown, end, self._tail_with(usage)))

    def closing(
        self,
        finish_reason: str,
        usage: Usage,
        stop_reason: str | int | None = None,
        token_ids: list[int] | None = None,
    ) -> bytes:
        """The last chunks: the finish reason, the usage if the client wants it, and ``[DONE]``."""
        reasons = b'null,"finish_reason":%b,"stop_reason":%b%b}]' % (
            orjson.dumps(finish_reason),
            orjson.dumps(stop_reason),
            b"" if token_ids is None else self._ids(token_ids),
        )
        last = b"".join((self._head, self._last_delta(), reasons, self._tail_with(usage)))
        if not self.shown.usage:
            return last + DONE
        return b"".join((last, self._head, b'[],"usage":', orjson.dumps(usage.body()), b"}\n\n", DONE))

    def _tail_with(self, usage: Usage | None) -> bytes:
        if usage is None or not self.shown.usage_in_chunks:
            return self._tail
        return b',"usage":%b}\n\n' % orjson.dumps(usage.counts())

    def _ids(self, token_ids: list[int]) -> bytes:
        """The part of a choice with token ids; those of the prompt come once."""
        ids = b',"token_ids":' + orjson.dumps(token_ids)
        if self._prompt_token_ids is None or not self.prompt_in_choice:
            return ids
        prompt, self._prompt_token_ids = orjson.dumps(self._prompt_token_ids), None
        return ids + b',"prompt_token_ids":' + prompt

    def _parts(self, delta: bytes) -> bytes:
        """As ``_delta``, of a chat. ``delta``: the JSON of its parts."""
        return b'[{"index":%d,"delta":%b,"logprobs":' % (self._index, delta)

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
    prompt_in_choice = False

    def opening(self, usage: Usage) -> bytes:
        delta = self._parts(b'{"role":"assistant","content":""}') + b'null,"finish_reason":null}]'
        if self._prompt_token_ids is not None:
            delta += b',"prompt_token_ids":' + orjson.dumps(self._prompt_token_ids)
        return self._head + delta + self._tail_with(replace(usage, num_completion_tokens=0))

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None, "annotations": []}}

    def _delta(self, text: str) -> bytes:
        return self._parts(b'{"content":%b}' % orjson.dumps(text))

    def _last_delta(self) -> bytes:
        return self._parts(b"{}")


class CompletionResponseBuilder(ResponseBuilder):
    """``/v1/completions``."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    prompt_in_choice = True

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> bytes:
        return b'[{"index":%d,"text":%b,"logprobs":' % (self._index, orjson.dumps(text))

    def _last_delta(self) -> bytes:
        return self._delta("")
