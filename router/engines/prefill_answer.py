"""P's answer: the parts that the router needs, and the parts that the client is sent. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from baton_serve.core.net.client.connection import Pieces
from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.router.engines.answer_body import (
    NULL,
    UsageSoFar,
    decoded_answer,
    decoded_usage,
)
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.upstream.events import DONE_EVENT

#: The reasons for an end after which nothing comes.
_COMPLETE: Final = ("stop", "tool_calls")


class PrefillAnswer:
    """A decoded answer of P. Raises ValueError (also as msgspec.DecodeError) for a body that is not such an answer."""

    __slots__ = ("_answer", "_body", "_choice", "_hand_off", "kv_transfer_params", "summary")
    #: mypyc allows ``del`` only of these.
    __deletable__ = ("_answer", "_choice")

    def __init__(self, body: bytes, *, hand_off: bool) -> None:
        """``hand_off``: P was asked to keep its blocks."""
        self._body = body
        self._hand_off = hand_off
        self._answer, raw, self.summary = decoded_answer(body)
        if not self._answer.choices:
            raise ValueError("no choices")
        self._choice = self._answer.choices[0]
        #: As P sent them, byte for byte. None when P holds no blocks.
        self.kv_transfer_params: bytes | None = None if raw in NULL else raw
        if self.summary.remote_num_tokens < 0:
            raise ValueError("less than no tokens")

    def forget_answer(self) -> None:
        """Keep only what D needs: a request may be held for long, and most of an answer is its parameters again."""
        self._body = b""
        del self._answer, self._choice

    def params(self) -> Pieces | None:
        """The ``kv_transfer_params`` for D. None when P holds no blocks."""
        return None if self.kv_transfer_params is None else (self.kv_transfer_params,)

    @property
    def created(self) -> int:
        """Unix seconds, the same in all chunks of a stream."""
        return self._answer.created

    @property
    def has_first_token(self) -> bool:
        """Whether P sent its token's id: D then continues after that token instead of sampling it again."""
        return self.summary.first_token >= 0

    @property
    def is_readable(self) -> bool:
        """Whether a D can use what P has handed over. If not, a worker computes the whole request."""
        return True

    def is_whole(self, asked: ClientRequest) -> bool:
        """Whether no D is needed, because the first token is also the last one."""
        return not self._hand_off or self._choice.finish_reason in _COMPLETE

    @property
    def _parts(self) -> dict[str, Any]:
        """The part of the answer that has come with P's token: text, or the parts of a chat's message."""
        choice = self._choice
        if choice.message is not None:
            return choice.message.delta()
        return {"content": choice.text} if choice.text else {}

    def _usage(self, asked: ClientRequest, *, at_start: bool = False) -> bytes | None:
        """The usage so far, for chunks that have it; None if P has not said it."""
        if not asked.usage_in_chunks:
            return None
        counts = decoded_usage(self._answer.usage)
        if counts is None:
            return None
        num_new = 0 if at_start else counts.completion_tokens
        return msgspec.json.encode(UsageSoFar(counts.prompt_tokens, num_new, counts.prompt_tokens + num_new))

    def _chunk(self, asked: ClientRequest, choices: list[dict[str, Any]], usage: bytes | None = None) -> bytes:
        chunk: dict[str, Any] = {
            "id": self._answer.id,
            "object": asked.chunk_object,
            "created": self._answer.created,
            "model": self._answer.model,
            "choices": choices,
        }
        if self._answer.system_fingerprint is not None:
            chunk["system_fingerprint"] = self._answer.system_fingerprint
        if asked.include_usage:
            chunk["usage"] = None if usage is None else orjson.Fragment(usage)
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def first_events(self, asked: ClientRequest, *, begun: bool = False) -> bytes:
        """The events of the first token. If the token has no visible text and no logprobs: only the role, or nothing.

        ``begun``: the client has been sent the role before.
        """
        events = b""
        if asked.chat and not begun:
            usage = self._usage(asked, at_start=True)
            events = self._chunk(asked, [self._shown({"delta": {"role": "assistant", "content": ""}})], usage)
            if asked.token_ids:
                events = b'%b,"prompt_token_ids":%b}\n\n' % (events[:-3], bytes(self._answer.prompt_token_ids))
        return events + (self._text_event(asked, begun=begun) if self.shows(asked) else b"")

    def shows(self, asked: ClientRequest) -> bool:
        """Whether the first token has anything for the client: text, logprobs or its id."""
        return self.shows_text or asked.token_ids

    @property
    def shows_text(self) -> bool:
        """Whether the first token has text or logprobs for the client; part of a character is no text yet."""
        return bool(self._parts) or bytes(self._choice.logprobs) not in NULL

    def _text_event(self, asked: ClientRequest, *, begun: bool) -> bytes:
        parts = self._parts or {"content": ""}
        text: dict[str, Any] = {"delta": parts} if asked.chat else {"text": parts["content"]}
        choice = self._shown(text, logprobs=orjson.Fragment(bytes(self._choice.logprobs)))
        if asked.token_ids:
            choice["token_ids"] = orjson.Fragment(bytes(self._choice.token_ids))
            if not asked.chat and not begun:
                choice["prompt_token_ids"] = orjson.Fragment(bytes(self._choice.prompt_token_ids))
        return self._chunk(asked, [choice], self._usage(asked))

    def last_events(self, asked: ClientRequest) -> bytes:
        """The end of a stream that the first token ended."""
        text: dict[str, Any] = {"delta": {}} if asked.chat else {"text": ""}
        choice = self._shown(text, finish=self._choice.finish_reason)
        if stop_reason := bytes(self._choice.stop_reason):
            choice["stop_reason"] = orjson.Fragment(stop_reason)
        if asked.token_ids:
            choice["token_ids"] = []  # the first events have them
        events = self._chunk(asked, [choice], self._usage(asked))
        if asked.include_usage:
            events += self._chunk(asked, [], bytes(self._answer.usage))
        return events + DONE_EVENT

    def _shown(
        self, content: dict[str, Any], *, logprobs: orjson.Fragment | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        """The choice in an event."""
        return {"index": self._choice.index, **content, "logprobs": logprobs, "finish_reason": finish}

    def whole_body(self) -> bytes:
        """The unstreamed answer without the parameters for D. Raises UpstreamError if it cannot be passed on."""
        try:
            body = orjson.loads(self._body)
            body.pop("kv_transfer_params", None)
            return orjson.dumps(body)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            # A part that the router does not read is nested too deeply, or has half of a surrogate pair.
            raise UpstreamError("A prefill worker's answer was not understood.") from None
