"""Which events have content for a client, and which only open its answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton_serve.router.upstream.content import has_content


def chunk(**choice: Any) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "finish_reason": None, **choice}]}) + b"\n\n"


def named(name: str, **data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps({"type": name, **data}) + b"\n\n"


OPENING = [
    chunk(delta={"role": "assistant", "content": ""}),
    chunk(delta={"role": "assistant", "content": None}, logprobs=None),
    chunk(delta={}),
    chunk(text=""),
    chunk(delta={"role": 'as"content":"written"'}),
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"x":{"content":"y"}}\n\n',
    named("message_start", message={"content": "a"}),
    named("response.created", response={"text": "a"}),
    b": keep-alive\n\n",
    named("response.created", response={"error": None}),
    named("response.in_progress"),
    named("response.output_item.added"),
    named("response.content_part.added"),
    named("message_start"),
    named("content_block_start"),
]
CONTENT = [
    chunk(delta={"content": "a"}),
    chunk(delta={"role": "assistant", "content": ""}) + chunk(delta={"content": "a"}),
    chunk(delta={"reasoning": "a"}),
    chunk(delta={"tool_calls": [{"index": 0}]}),
    chunk(delta={}, finish_reason="stop"),
    chunk(delta={"content": ""}, logprobs={"content": []}),
    chunk(text=" a"),
    chunk(text="event: a"),
    chunk(delta={"content": '"'}),
    b'data: {"choices": [], "usage": {}}\n\n',
    b'data: {"error": {"message": "m"}}\n\n',
    b"data: [DONE]\n\n",
    named("response.output_text.delta"),
    named("response.function_call_arguments.delta"),
    named("response.completed"),
    named("content_block_delta"),
    named("message_stop"),
    named("error"),
]


@pytest.mark.parametrize("event", OPENING)
def test_an_event_that_only_opens_an_answer_has_no_content(event: bytes) -> None:
    assert not has_content(event)


@pytest.mark.parametrize("event", CONTENT)
def test_an_event_that_does_more_than_open_an_answer_has_content(event: bytes) -> None:
    assert has_content(event)


@given(st.lists(st.sampled_from(OPENING)), st.sampled_from(CONTENT), st.lists(st.sampled_from(OPENING)))
def test_one_event_with_content_is_enough(before: list[bytes], event: bytes, after: list[bytes]) -> None:
    assert has_content(b"".join([*before, event, *after]))
    assert not has_content(b"".join(before + after))


@given(st.binary(max_size=40))
@example(b'"text":"')
@example(b'"content":"')
def test_no_bytes_are_too_strange(data: bytes) -> None:
    has_content(data)
    has_content(b"data: " + data + b"\n\n")
