"""The token ids in vLLM's events, and how another server continues after them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from baton_serve.router.upstream.events import DONE_EVENT, EventTooLarge
from baton_serve.router.vllm.engine.tokens import VllmTokens


def event(content: str | None = None, ids: list[int] | None = None, **choice: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    made = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **choice}
    if ids is not None:
        made["token_ids"] = ids
    return _chunk({"choices": [made]})


def _chunk(fields: dict[str, Any]) -> bytes:
    chunk = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 5, "model": "m", **fields}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def role(prompt: list[int], created: int = 5) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return _chunk({"created": created, "choices": [choice], "prompt_token_ids": prompt, "prompt_text": None})


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return _chunk({"choices": [], "usage": counts})


def begun(*events: bytes, wants_ids: bool = False) -> tuple[VllmTokens, bytes]:
    tokens = VllmTokens(1 << 16, wants_ids=wants_ids)
    first = role([1, 2])
    tokens.leg(first, named=True, opens=True)
    return tokens, tokens.take(first, 1) + b"".join(tokens.take(one, 1) for one in events)


def chunks(data: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(one[6:]) for one in data.split(b"\n\n")[:-1] if one != b"data: [DONE]"]


def test_the_client_is_not_sent_ids_that_it_did_not_ask_for() -> None:
    tokens, sent = begun(event("a", [7]), event("b", [8]))
    assert b"token_ids" not in sent
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks(sent)] == ["", "a", "b"]
    assert (tokens.ids(), tokens.all_ids(), tokens.can_continue()) == ([7, 8], b"[1,2,7,8]", True)


def test_a_client_that_asked_for_ids_gets_them() -> None:
    _, sent = begun(event("a", [7]), wants_ids=True)
    assert chunks(sent)[0]["prompt_token_ids"] == [1, 2]
    assert chunks(sent)[1]["choices"][0]["token_ids"] == [7]


def test_an_id_in_the_text_of_an_answer_is_text() -> None:
    text = ',"token_ids":[9],"finish_reason":"stop"'
    tokens, sent = begun(event(text, [7]))
    assert chunks(sent)[1]["choices"][0]["delta"]["content"] == text
    assert tokens.ids() == [7]


def test_ids_without_text_are_computed_again() -> None:
    """The text of part of a character comes with its last token."""
    tokens, _ = begun(event("a", [7]), event("", [8]), event("", [9]))
    assert (tokens.ids(), tokens.all_ids()) == ([7], b"[1,2,7]")
    tokens.take(event("\u00e9", [10]), 1)
    assert tokens.ids() == [7, 8, 9, 10]


def test_several_ids_in_an_event_do_not_tell_whose_text_is_complete() -> None:
    tokens, _ = begun(event("ab", [7, 8]))
    assert not tokens.can_continue()
    tokens.take(event("c", [9]), 1)
    assert tokens.can_continue()
    assert tokens.ids() == [7, 8, 9]


@pytest.mark.parametrize("delta", [{"reasoning": "x"}, {"tool_calls": [{"index": 0}]}])
def test_a_stream_that_a_parser_has_read_cannot_be_continued(delta: dict[str, Any]) -> None:
    tokens, _ = begun(event(ids=[7], delta=delta))
    assert not tokens.can_continue()


def test_the_last_events_are_held_until_all_have_come() -> None:
    tokens, _ = begun(event("a", [7]))
    assert tokens.take(event("b", [8], finish_reason="length"), 1) == b""
    assert tokens.take(usage(2, 2), 1) == b""
    assert tokens.ids() == [7], "the token of an event that was not sent is computed again"
    whole = tokens.take(DONE_EVENT, 1)
    assert whole.endswith(DONE_EVENT)
    assert [chunk.get("usage", {}).get("completion_tokens") for chunk in chunks(whole)] == [None, 2]


def test_last_events_that_never_end_are_bounded() -> None:
    tokens, _ = begun(event("a", [7], finish_reason="stop"))
    with pytest.raises(EventTooLarge):
        for _ in range(1000):
            tokens.take(event("x" * 100), 1)


def test_a_continued_stream_looks_like_one() -> None:
    tokens, _ = begun(event("a", [7]), event("", [8]))
    tokens.begun = True
    again = role([1, 2, 7], created=9)
    tokens.leg(again, named=True, opens=False)
    sent = tokens.take(again, 1) + tokens.take(event("\u00e9", [8, 9], delta={"content": "\u00e9"}), 1)
    sent += tokens.take(event("c", [10], finish_reason="stop"), 1) + tokens.take(usage(3, 3), 1)
    sent += tokens.take(DONE_EVENT, 1)
    text, last, end = chunks(sent)
    assert (text["created"], text["choices"][0]["delta"]) == (5, {"content": "\u00e9"})
    assert last["choices"][0]["finish_reason"] == "stop"
    assert end["usage"] == {"prompt_tokens": 2, "total_tokens": 6, "completion_tokens": 4}
    assert b"token_ids" not in sent
    assert b"role" not in sent


def test_a_completion_tells_prompt_and_token_in_one_event() -> None:
    tokens = VllmTokens(1 << 16, wants_ids=False)
    choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None, "stop_reason": None}
    first = _chunk({"choices": [{**choice, "prompt_token_ids": [1, 2], "token_ids": [7]}]})
    tokens.leg(first, named=True, opens=False)
    sent = tokens.take(first, 1)
    assert chunks(sent)[0]["choices"] == [choice]
    assert tokens.all_ids() == b"[1,2,7]"


def test_a_stream_without_names_cannot_be_continued() -> None:
    tokens = VllmTokens(1 << 16, wants_ids=False)
    tokens.leg(role([1]), named=False, opens=True)
    assert not tokens.can_continue()


def test_a_client_that_sees_ids_is_not_sent_one_twice() -> None:
    tokens, _ = begun(event("a", [7]), event("", [8]), wants_ids=True)
    assert not tokens.can_continue()
    tokens.take(event("b", [9]), 1)
    assert tokens.can_continue()
    tokens.begun = True
    choice = {"index": 0, "text": "c", "prompt_token_ids": [1, 2, 7, 8, 9], "token_ids": [10]}
    sent = tokens.take(_chunk({"choices": [choice]}), 1)
    assert chunks(sent)[0]["choices"] == [{"index": 0, "text": "c", "token_ids": [10]}]


def test_numbers_beyond_every_bound_end_in_no_bug() -> None:
    digits = b"9" * 5000
    tokens = VllmTokens(1 << 16, wants_ids=False)
    first = role([1, 2]).replace(b'"created":5', b'"created":' + digits)
    tokens.leg(first, named=True, opens=True)
    tokens.take(first, 1)
    tokens.take(event("a", [7]).replace(b"[7]", b"[" + digits + b"]"), 1)
    assert tokens.ids() is None
    assert 0 < tokens.created < 1 << 63
