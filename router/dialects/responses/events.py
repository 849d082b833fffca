"""Writes a response as a stream of events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.dialects.chat_answers import Usage
from baton_serve.router.dialects.port import Ending, EventWriter, Kind, Part
from baton_serve.router.dialects.responses.answer import ResponseObject, content_of
from baton_serve.router.upstream.events import named_event

#: What the deltas of a part are called.
_DELTAS = {
    Kind.REASONING: "response.reasoning_text",
    Kind.TEXT: "response.output_text",
}


class ResponseEvents(EventWriter):
    """The events of a response, each with the number of events before it."""

    def __init__(self, response: ResponseObject, clock: Callable[[], float]) -> None:
        """``clock``: Unix seconds."""
        self._response = response
        self._clock = clock
        self._created = 0
        self._number = 0

    def begin(self, created: int, usage: Usage | None) -> bytes:
        self._created = created
        response = self._response.begun(created)
        begun = self._event("response.created", response=response)
        return begun + self._event("response.in_progress", response=response)

    def open(self, part: Part) -> bytes:
        item = self._response.item(part, "in_progress")
        if part.kind is not Kind.CALL:
            item["content"] = []
        opened = self._event("response.output_item.added", output_index=part.index, item=item)
        return opened if part.kind is Kind.CALL else opened + self._of_content("content_part.added", part)

    def add(self, part: Part, piece: str, tokens: Sequence[dict[str, Any]]) -> bytes:
        if part.kind is Kind.CALL:
            shape = self._response.shape(part)
            return self._of_part(f"{shape.events}.delta", part, delta=piece) if shape.streams else b""
        return self._of_part(f"{_DELTAS[part.kind]}.delta", part, delta=piece, **_logprobs(part, tokens))

    def close(self, part: Part) -> bytes:
        item = self._response.item(part, "completed" if part.is_complete else "incomplete")
        closed = self._closed_call(part, item) if part.kind is Kind.CALL else self._closed_text(part)
        return closed + self._event("response.output_item.done", output_index=part.index, item=item)

    def _closed_call(self, part: Part, item: dict[str, Any]) -> bytes:
        shape = self._response.shape(part)
        if not shape.events:
            return b""
        given = item[shape.key]
        told = b"" if shape.streams else self._of_part(f"{shape.events}.delta", part, delta=given)
        return told + self._of_part(f"{shape.events}.done", part, **{shape.key: given})

    def _closed_text(self, part: Part) -> bytes:
        closed = self._of_part(f"{_DELTAS[part.kind]}.done", part, text=part.text, **_logprobs(part, part.tokens))
        return closed + self._of_content("content_part.done", part)

    def end(self, parts: Sequence[Part], ending: Ending) -> bytes:
        name = "response.completed" if ending.is_complete else "response.incomplete"
        return self._event(name, response=self._response.ended(self._created, int(self._clock()), parts, ending))

    def fail(self, parts: Sequence[Part], error: ApiError) -> bytes:
        """An event with Baton's own code, and one with what has come of the response."""
        told = self._event("error", code=error.code or error.type, message=error.message, param=error.param)
        return told + self._event("response.failed", response=self._response.failed(self._created, parts, error))

    def _of_content(self, name: str, part: Part) -> bytes:
        return self._of_part(f"response.{name}", part, part=content_of(part))

    def _of_part(self, name: str, part: Part, /, **fields: Any) -> bytes:
        item_id = self._response.item_id(part)
        if part.kind is not Kind.CALL:
            fields["content_index"] = 0
        return self._event(name, item_id=item_id, output_index=part.index, **fields)

    def _event(self, name: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event({"type": name, "sequence_number": number, **fields})


def _logprobs(part: Part, tokens: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The field of events about text. There, tokens have no bytes."""
    if part.kind is not Kind.TEXT:
        return {}
    with_top = ((token, token.get("top_logprobs") or ()) for token in tokens)
    return {"logprobs": [{**_plain(token), "top_logprobs": list(map(_plain, top))} for token, top in with_top]}


def _plain(token: dict[str, Any]) -> dict[str, Any]:
    return {"token": token.get("token"), "logprob": token.get("logprob")}
