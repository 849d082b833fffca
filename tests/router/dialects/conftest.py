"""The two dialects that stream, with what the same tests need to know of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.kits.strict_types import message_events, message_of, response_events, response_of

NUM_TOKENS = 8


class Spoken(NamedTuple):
    """One dialect."""

    path: str
    #: The parameter that bounds the answer.
    limit: str
    #: The beginning of an answer's id.
    prefix: str

    def body(self, **more: Any) -> dict[str, Any]:
        said = {"input": "hi"} if self.path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
        return {"model": "m", self.limit: NUM_TOKENS, **said, **more}

    def events(self, text: str) -> list[Any]:
        """The events of a stream, strictly validated."""
        return response_events(text) if self.path == "/v1/responses" else message_events(text)

    def text_of_whole(self, data: str) -> str:
        """The text of a whole answer, strictly validated."""
        if self.path == "/v1/responses":
            return response_of(data).output_text
        return "".join(block.text for block in message_of(data).content if block.type == "text")

    def text_of(self, events: list[Any]) -> str:
        """The text of a stream."""
        deltas = (
            event.delta for event in events if event.type in ("response.output_text.delta", "content_block_delta")
        )
        return "".join(delta if isinstance(delta, str) else delta.text for delta in deltas)

    def error_of(self, body: Any) -> tuple[str, str]:
        """The type and the message of an error's body."""
        if self.path == "/v1/messages":
            assert body["type"] == "error" and set(body["error"]) == {"type", "message"}
        return body["error"]["type"], body["error"]["message"]


@pytest.fixture(params=["/v1/responses", "/v1/messages"])
def spoken(request: pytest.FixtureRequest) -> Spoken:
    if request.param == "/v1/responses":
        return Spoken(request.param, "max_output_tokens", "resp_")
    return Spoken(request.param, "max_tokens", "msg_")
