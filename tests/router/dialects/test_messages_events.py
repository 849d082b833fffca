"""From a chat's stream to that of a message of Anthropic's: the events and their order, whatever the pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import RateLimitError, UnavailableError, UpstreamError
from baton_serve.router.dialects.messages.chat import NAMES
from baton_serve.router.dialects.messages.translation import MessageTranslation
from baton_serve.router.dialects.stream import MAX_SILENT, SIGN_OF_LIFE, DialectStream
from tests.kits.dialects.chats import THOUGHT_TEXT_AND_CALLS, calls, ends, fails, role, says, thinks, whole, whole_call
from tests.kits.strict_types import message_events, message_of, named_events

ID = "ab" * 16
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
EVERYTHING = [*THOUGHT_TEXT_AND_CALLS, ends("tool_calls")]
MESSAGE = {
    "reasoning_content": "I know",
    "content": "Onward",
    "tool_calls": [whole_call(0, "get", '{"a":1}'), whole_call(1, "put", "")],
}
BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]


def stream_of(body: dict[str, Any]) -> DialectStream:
    return DialectStream(MessageTranslation(body, ID), NAMES)


def translated(*chat: bytes, **more: Any) -> list[Any]:
    stream = stream_of({**BODY, **more})
    return message_events(b"".join(map(stream.feed, chat)).decode())


def kinds(events: list[Any]) -> list[str]:
    found: list[str] = []
    for event in events:
        if not (event.type == "content_block_delta" and found[-1] == event.type):
            found.append(event.type)
    return found


def accumulated(events: list[Any]) -> Any:
    """The message that the client makes of the events."""
    message, buffers = None, {}
    for event in events:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    return message


def test_all_parts_of_an_answer_come_as_events_in_order() -> None:
    events = translated(*EVERYTHING)
    assert kinds(events) == [
        "message_start",
        *BLOCK * 3,
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, *_, delta, _ = events
    assert (start.message.id, start.message.content, start.message.stop_reason) == (f"msg_{ID}", [], None)
    assert (start.message.usage.input_tokens, start.message.usage.output_tokens) == (12, 0)
    assert (delta.delta.stop_reason, delta.delta.stop_sequence) == ("tool_use", None)
    usage = delta.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 8, 7)
    assert usage.output_tokens_details.thinking_tokens == 3


def test_a_whole_answer_is_what_the_client_makes_of_the_stream() -> None:
    found = message_of(MessageTranslation(BODY, ID).whole(whole(MESSAGE, "tool_calls")))
    thought, said, first, second = found.content
    assert (thought.thinking, said.text) == ("I know", "Onward")
    assert [(call.id, call.name, call.input) for call in (first, second)] == [
        ("call_0", "get", {"a": 1}),
        ("call_1", "put", {}),
    ]
    assert accumulated(translated(*EVERYTHING)).to_dict(exclude_none=True) == found.to_dict(exclude_none=True)


#: What the published schemas of the API require of an answer, beyond what its clients look at.
MESSAGE_KEYS = {"id", "type", "role", "content", "model", "stop_reason", "stop_sequence"} | {
    "stop_details",
    "container",
}
COUNTS = {"input_tokens", "output_tokens", "output_tokens_details", "server_tool_use"}
COUNTS |= {"cache_creation_input_tokens", "cache_read_input_tokens"}
USAGE_KEYS = COUNTS | {"cache_creation", "inference_geo", "service_tier"}


def test_an_answer_has_all_that_the_published_schema_requires() -> None:
    for answer in (
        json.loads(MessageTranslation(BODY, ID).whole(whole(MESSAGE, "tool_calls"))),
        translated(*EVERYTHING)[0].message.to_dict(),
    ):
        assert answer.keys() == {*MESSAGE_KEYS, "usage"}
        assert answer["usage"].keys() == USAGE_KEYS
    whole_answer = json.loads(MessageTranslation(BODY, ID).whole(whole(MESSAGE, "tool_calls")))
    thought, said, *called = whole_answer["content"]
    assert (thought["signature"], said["citations"]) == ("", None)
    assert [call["caller"] for call in called] == [{"type": "direct"}] * 2
    assert whole_answer["usage"]["cache_creation"] == {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0}
    assert whole_answer["usage"]["service_tier"] == "standard"
    delta = translated(*EVERYTHING)[-2].to_dict()
    assert delta["delta"].keys() == {"stop_reason", "stop_sequence", "stop_details", "container"}
    assert delta["usage"].keys() == COUNTS


def test_an_answer_says_that_nothing_of_the_history_was_edited() -> None:
    edits = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    found = json.loads(MessageTranslation({**BODY, **edits}, ID).whole(whole(MESSAGE, "tool_calls")))
    assert found["context_management"] == {"applied_edits": []}
    events = b"".join(map(stream_of({**BODY, **edits}).feed, EVERYTHING)).decode()
    (delta,) = [json.loads(data) for name, data in named_events(events) if name == "message_delta"]
    assert delta["context_management"] == {"applied_edits": []}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_comes_once_whether_it_has_one_name_or_two(name: str) -> None:
    once = [role(), thinks("I ", name), thinks("know", name), says("On"), ends()]
    twice = [role(), thinks("I "), thinks("know"), says("On"), ends()]
    assert translated(*once) == translated(*twice)
    assert accumulated(translated(*once)).content[0].thinking == "I know"
    found = message_of(MessageTranslation(BODY, ID).whole(whole({name: "I know", "content": "On"})))
    assert (found.content[0].thinking, found.content[1].text) == ("I know", "On")


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", 5, ("end_turn", None)),
    ],
)
def test_a_message_says_why_it_ended(finish: str, stop: str | int | None, expected: tuple[str, str | None]) -> None:
    *_, delta, _ = translated(role(), says("On"), ends(finish, stop))
    assert (delta.delta.stop_reason, delta.delta.stop_sequence) == expected
    found = message_of(MessageTranslation(BODY, ID).whole(whole({"content": "On"}, finish, stop)))
    assert (found.stop_reason, found.stop_sequence) == expected


def test_a_call_that_was_forced_ends_an_answer_as_any_call() -> None:
    """A chat says "stop" of it."""
    *_, delta, _ = translated(role(), calls(0, "get", "{}"), ends("stop"))
    assert delta.delta.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("finish", "stop", "arguments", "expected"),
    [
        ("stop", 7, '{"a": 1', "end_turn"),
        ("stop", "END", '{"a": 1', "stop_sequence"),
        ("length", None, '{"a": 1', "max_tokens"),
        ("length", None, '{"a": 1}', "max_tokens"),
        ("stop", 7, '{"a": 1}', "tool_use"),
    ],
)
def test_a_call_in_which_an_answer_ends_has_its_input_if_all_of_it_came(
    finish: str, stop: str | int | None, arguments: str, expected: str
) -> None:
    """Its input is there if all of it has come."""
    *_, delta, _ = translated(role(), calls(0, "get", arguments), ends(finish, stop))
    message = {"tool_calls": [whole_call(0, "get", arguments)]}
    found = message_of(MessageTranslation(BODY, ID).whole(whole(message, finish, stop)))
    assert delta.delta.stop_reason == found.stop_reason == expected
    assert found.content[0].input == ({"a": 1} if arguments.endswith("}") else {})


@pytest.mark.parametrize("arguments", ['{"a": "b', "[1]", "5"])
def test_arguments_that_are_no_object_are_an_empty_one(arguments: str) -> None:
    message = {"tool_calls": [whole_call(0, "get", arguments)]}
    found = message_of(MessageTranslation(BODY, ID).whole(whole(message, "length")))
    assert found.content[0].input == {}


def test_thinking_may_be_left_out() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    events = translated(*EVERYTHING, thinking=thinking)
    found = message_of(MessageTranslation({**BODY, "thinking": thinking}, ID).whole(whole(MESSAGE)))
    assert [block.type for block in found.content] == ["text", "tool_use", "tool_use"]
    assert accumulated(events).to_dict(exclude_none=True)["content"] == found.to_dict(exclude_none=True)["content"]


def test_thinking_that_is_left_out_is_not_silent_for_long() -> None:
    """Proxies close what is silent."""
    thinking = {"type": "adaptive", "display": "omitted"}
    stream = stream_of({**BODY, "thinking": thinking})
    stream.feed(role())
    fed = [stream.feed(thinks(str(number))) for number in range(3 * MAX_SILENT)]
    assert [number for number, data in enumerate(fed) if data] == [MAX_SILENT * turn - 1 for turn in (1, 2, 3)] and set(
        fed
    ) == {b"", SIGN_OF_LIFE}
    assert kinds(message_events(stream.feed(says("On") + ends()).decode()))[0] == "content_block_start"


def test_tokens_that_a_worker_has_not_counted_are_zero() -> None:
    events = translated(role().replace(b'"usage"', b'"no_usage"'), says("On"), ends(usage=None))
    assert events[0].message.usage.input_tokens == events[-2].usage.output_tokens == 0


def test_an_error_in_the_stream_ends_it() -> None:
    events = translated(role(), says("On"), fails("it grew"), ends())
    assert kinds(events)[-2:] == ["content_block_delta", "error"]
    assert (events[-1].error.type, events[-1].error.message) == ("api_error", "output_config.format: it grew")
    assert events[-1].request_id == ID


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpstreamError("gone"), "api_error"),
        (RateLimitError("busy"), "rate_limit_error"),
        (UnavailableError("none"), "overloaded_error"),
    ],
)
def test_a_stream_that_the_router_gives_up_ends_with_an_error(error: Any, kind: str) -> None:
    stream = stream_of(BODY)
    events = message_events((stream.feed(role() + says("On")) + stream.fail(error)).decode())
    assert events[-1].error.type == kind
    assert stream.fail(error) == stream.feed(ends()) == b""


TEXTS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6)


@given(thoughts=TEXTS, texts=TEXTS, cuts=st.lists(st.integers(1, 20), max_size=6))
def test_the_message_depends_on_the_texts_and_not_on_their_pieces(
    thoughts: list[str], texts: list[str], cuts: list[int]
) -> None:
    events = [role(), *map(thinks, thoughts), *map(says, texts), calls(0, "f", "{}"), ends("tool_calls")]
    stream, begin, data = stream_of(BODY), 0, b""
    for end in [*sorted(cuts), len(events)]:
        data += stream.feed(b"".join(events[begin:end]))
        begin = max(begin, end)
    message = {"reasoning_content": "".join(thoughts), "content": "".join(texts)}
    message["tool_calls"] = [whole_call(0, "f", "{}")]
    found = message_of(MessageTranslation(BODY, ID).whole(whole(message, "tool_calls")))
    assert accumulated(message_events(data.decode())).to_dict(exclude_none=True) == found.to_dict(exclude_none=True)


def test_arguments_that_are_nested_deeply_come_as_the_model_wrote_them() -> None:
    """orjson reads them, and would not write them."""
    arguments = '{{"a":{}{}}}'.format("[" * 300, "]" * 300)
    answer = MessageTranslation(BODY, ID).whole(whole({"tool_calls": [whole_call(0, "get", arguments)]}, "tool_calls"))
    assert b'"input":%b' % arguments.encode() in answer


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_a_count_beyond_64_bits_is_the_workers_fault(name: str) -> None:
    answer = {**json.loads(whole(MESSAGE)), "usage": {name: 2**64}}
    with pytest.raises(UpstreamError):
        MessageTranslation(BODY, ID).whole(json.dumps(answer).encode())
