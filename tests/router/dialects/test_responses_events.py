"""From a chat's stream to that of a response: the events and their order, whatever the pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import RateLimitError, UpstreamError
from baton_serve.router.dialects.responses.translation import NAMES, ResponseTranslation
from baton_serve.router.dialects.stream import DialectStream
from tests.kits.dialects.chats import (
    CREATED,
    THOUGHT_TEXT_AND_CALLS,
    argues,
    calls,
    chunk,
    ends,
    event_of,
    fails,
    role,
    says,
    thinks,
    tokens,
    whole,
    whole_call,
)
from tests.kits.strict_types import response_events, response_of

ID = "ab" * 16
NOW = CREATED + 5
BODY: dict[str, Any] = {"model": "m", "input": "hi", "stream": True}
TEXT = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
THOUGHT = [
    "output_item.added",
    "content_part.added",
    "reasoning_text.delta",
    "reasoning_text.done",
    "content_part.done",
]
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
EVERYTHING = [*THOUGHT_TEXT_AND_CALLS, argues(1, "{}"), ends("tool_calls")]
MESSAGE = {
    "reasoning_content": "I know",
    "content": "Onward",
    "tool_calls": [whole_call(0, "get", '{"a":1}'), whole_call(1, "put", "{}")],
}


def clock() -> float:
    return NOW


def stream_of(body: dict[str, Any]) -> DialectStream:
    return DialectStream(ResponseTranslation(body, ID, clock=clock), NAMES)


def translated(*chat: bytes, **more: Any) -> list[Any]:
    stream = stream_of({**BODY, **more})
    return response_events(b"".join(map(stream.feed, chat)).decode())


def kinds(events: list[Any]) -> list[str]:
    """The types of the events without their common beginning; deltas that follow each other are one."""
    found: list[str] = []
    for event in events:
        kind = event.type.removeprefix("response.")
        if not (kind.endswith(".delta") and found[-1] == kind):
            found.append(kind)
    return found


def test_a_text_comes_as_events_in_order() -> None:
    events = translated(role(), says("On"), says("ward"), ends())
    assert kinds(events) == ["created", "in_progress", *TEXT, "output_item.done", "completed"]
    created, *_, last = events
    assert (created.response.id, created.response.status, created.response.created_at) == (
        f"resp_{ID}",
        "in_progress",
        CREATED,
    )
    assert created.response.output == [] and created.response.usage is None
    assert last.response.output_text == "Onward" and last.response.status == "completed"
    assert (created.response.completed_at, last.response.completed_at) == (None, NOW)
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["On", "ward"]
    usage = last.response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (12, 7, 19)
    assert usage.input_tokens_details.cached_tokens == 8 and usage.output_tokens_details.reasoning_tokens == 3


def test_all_parts_of_an_answer_come_as_events_in_order() -> None:
    events = translated(*EVERYTHING)
    parts = [[*some, "output_item.done"] for some in (THOUGHT, TEXT, CALL, CALL)]
    assert kinds(events) == ["created", "in_progress", *(kind for part in parts for kind in part), "completed"]
    thought, said, first, second = events[-1].response.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "I know", [])
    assert (said.type, said.content[0].text) == ("message", "Onward")
    assert [(call.name, call.arguments, call.call_id) for call in (first, second)] == [
        ("get", '{"a":1}', "call_0"),
        ("put", "{}", "call_1"),
    ]


def test_each_event_says_of_which_part_it_is() -> None:
    events = translated(*EVERYTHING)
    items = {event.output_index: event.item for event in events if event.type == "response.output_item.added"}
    done = {event.output_index: event.item for event in events if event.type == "response.output_item.done"}
    assert list(items) == list(done) == [0, 1, 2, 3]
    assert [item.status for item in items.values()] == ["in_progress"] * 4
    assert list(done.values()) == events[-1].response.output
    assert len({item.id for item in items.values()}) == 4
    for one in events:
        if hasattr(one, "item_id"):
            assert one.item_id == items[one.output_index].id == done[one.output_index].id


def test_a_whole_answer_is_the_last_event_of_the_stream() -> None:
    body = {**BODY, "stream": False}
    found = response_of(ResponseTranslation(body, ID, clock=clock).whole(whole(MESSAGE, "tool_calls")))
    assert found == translated(*EVERYTHING)[-1].response


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_comes_once_whether_it_has_one_name_or_two(name: str) -> None:
    once = translated(role(), thinks("I ", name), thinks("know", name), says("On"), ends())
    assert once == translated(role(), thinks("I "), thinks("know"), says("On"), ends())
    thought, _ = once[-1].response.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "I know")


@pytest.mark.parametrize("reasoning", ["", "hm"])
def test_an_answer_that_is_cut_off_is_incomplete(reasoning: str) -> None:
    chat = [thinks(reasoning)] if reasoning else [says("On")]
    events = translated(role(), *chat, ends("length"))
    *_, done, last = events
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert done.item.status == "incomplete"
    assert len(last.response.output) == 1
    message = {"reasoning_content": reasoning} if reasoning else {"content": "On"}
    assert response_of(ResponseTranslation(BODY, ID, clock=clock).whole(whole(message, "length"))) == last.response


@pytest.mark.parametrize("before", [[], [thinks("hm")]])
def test_an_answer_without_any_text_has_an_empty_one(before: list[bytes]) -> None:
    """A client that looks for the text of the last message finds it."""
    response = translated(role(), *before, ends())[-1].response
    assert response.output[-1].type == "message" and response.output_text == ""


@pytest.mark.parametrize(
    ("finish", "arguments", "statuses"),
    [
        ("stop", '{"a": 1', ("completed", "incomplete")),
        ("length", '{"a": 1', ("incomplete", "incomplete")),
        ("length", '{"a": 1}', ("incomplete", "completed")),
        ("stop", '{"a": 1}', ("completed", "completed")),
    ],
)
def test_a_call_in_which_an_answer_ends_is_complete_if_all_of_it_came(
    finish: str, arguments: str, statuses: tuple[str, str]
) -> None:
    """The call is complete if all of its arguments have come."""
    *_, done, last = translated(role(), calls(0, "get", arguments), ends(finish))
    assert (last.response.status, last.response.output[0].status) == statuses
    assert done.item.status == statuses[1]


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.5, "top_p": 0.5}])
def test_a_response_says_what_was_sampled_with(asked: dict[str, float]) -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    answer = ResponseTranslation({**BODY, **asked}, ID, defaults).whole(whole({"content": "On"}))
    sampled = {**defaults, **asked}
    found = response_of(answer)
    assert (found.temperature, found.top_p) == (sampled["temperature"], sampled["top_p"])


def test_logprobs_come_with_the_text() -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events = translated(role(), says("On", tokens("O", "n")), says("ward", tokens("ward")), ends(), **asked)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [[token.token for token in event.logprobs] for event in deltas] == [["O", "n"], ["ward"]]
    assert [top.token for token in deltas[0].logprobs for top in token.top_logprobs] == ["O", "n"]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [token.token for token in done.logprobs] == ["O", "n", "ward"]
    content = events[-1].response.output[0].content[0]
    assert [bytes(token.bytes) for token in content.logprobs] == [b"O", b"n", b"ward"]
    message = whole({"content": "Onward"}, logprobs=tokens("O", "n", "ward"))
    assert response_of(ResponseTranslation({**BODY, **asked}, ID, clock=clock).whole(message)) == events[-1].response


def test_logprobs_of_tokens_without_text_come_with_the_next_text_or_the_last() -> None:
    thought = [{"delta": {"reasoning_content": "hm"}, "logprobs": tokens("hm"), "finish_reason": None}]
    events = translated(role(), event_of(thought), says("On", tokens("On")), says("", tokens("\ufffd")), ends())
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [[token.token for token in event.logprobs] for event in deltas] == [["hm", "On"], ["\ufffd"]]


def test_an_error_in_the_stream_ends_it() -> None:
    events = translated(role(), says("On"), fails("it grew"), ends())
    *_, told, failed = events
    assert (told.type, told.code, told.param, told.message) == ("error", "grammar_failed", "text.format", "it grew")
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.error.message == "it grew"
    assert failed.response.output_text == "On" and failed.response.output[0].status == "incomplete"


@pytest.mark.parametrize(
    ("error", "code"), [(UpstreamError("gone"), "server_error"), (RateLimitError("busy"), "rate_limit_exceeded")]
)
def test_a_stream_that_the_router_gives_up_has_failed(error: Any, code: str) -> None:
    stream = stream_of(BODY)
    data = stream.feed(role() + says("On")) + stream.fail(error)
    *_, told, failed = response_events(data.decode())
    assert (told.code, failed.response.error.code) == (error.code, code)
    assert stream.fail(error) == stream.feed(ends()) == b""


def test_text_that_came_before_a_mistake_of_the_worker_is_not_lost() -> None:
    """Also in the event that has the mistake."""
    stream = stream_of(BODY)
    data = stream.feed(role() + calls(0, "a"))
    with pytest.raises(UpstreamError) as caught:
        stream.feed(says("On") + chunk({"content": "ward", "tool_calls": [{"index": 0, "function": {}}]}))
    events = response_events((data + stream.fail(caught.value)).decode())
    assert events[-1].response.output_text == "Onward"


def test_a_stream_may_fail_before_it_has_begun() -> None:
    stream = stream_of(BODY)
    events = response_events(stream.fail(UpstreamError("gone")).decode())
    assert kinds(events) == ["created", "in_progress", "error", "failed"]


@pytest.mark.parametrize(
    "chat",
    [
        [b"data: nonsense\n\n"],
        [b'data: {"choices": 5}\n\n'],
        [b'data: {"choices":[{"delta":{"content":5}}]}\n\n'],
        [b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'],
        [role(), b"data: [DONE]\n\n"],
        [calls(0, "a"), calls(1, "b"), argues(0, "{}")],
        [calls(0, "a"), says("b"), argues(0, "{}")],
    ],
)
def test_a_malformed_chat_is_the_workers_fault(chat: list[bytes]) -> None:
    stream = stream_of(BODY)
    with pytest.raises(UpstreamError):
        for data in chat:
            stream.feed(data)


@pytest.mark.parametrize("answer", [b"{", b'{"choices": []}', b'{"choices":[{"message":{"tool_calls":[5]}}]}', b"[]"])
def test_a_malformed_whole_answer_is_the_workers_fault(answer: bytes) -> None:
    with pytest.raises(UpstreamError):
        ResponseTranslation(BODY, ID, clock=clock).whole(answer)


def test_comments_are_passed_on() -> None:
    stream = stream_of(BODY)
    assert stream.feed(b": still here\n\n") == b": still here\n\n"
    assert stream.feed(role()) != b""


PIECES = st.lists(st.integers(1, len(EVERYTHING)), max_size=6)
TEXTS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6)


@given(PIECES)
def test_the_stream_does_not_depend_on_how_the_events_are_put_together(cuts: list[int]) -> None:
    stream, begin, data = stream_of(BODY), 0, b""
    for end in [*sorted(cuts), len(EVERYTHING)]:
        data += stream.feed(b"".join(EVERYTHING[begin:end]))
        begin = max(begin, end)
    assert data == stream_of(BODY).feed(b"".join(EVERYTHING))


@given(thoughts=TEXTS, texts=TEXTS, arguments=st.lists(TEXTS, max_size=3))
def test_the_response_depends_on_the_texts_and_not_on_their_pieces(
    thoughts: list[str], texts: list[str], arguments: list[list[str]]
) -> None:
    def chat(split: Any) -> list[bytes]:
        fragments = [
            part
            for index, some in enumerate(arguments)
            for part in (calls(index, f"f{index}"), *(argues(index, piece) for piece in split(some)))
        ]
        return [role(), *map(thinks, split(thoughts)), *map(says, split(texts)), *fragments, ends()]

    pieces, at_once = translated(*chat(list)), translated(*chat(lambda some: ["".join(some)]))
    assert pieces[-1].response == at_once[-1].response
    assert kinds(pieces) == kinds(at_once)
    for kind in ("reasoning_text", "output_text", "function_call_arguments"):
        said = [
            "".join(event.delta for event in events if event.type == f"response.{kind}.delta")
            for events in (pieces, at_once)
        ]
        assert said[0] == said[1]
