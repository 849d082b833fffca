"""The beginning and the size of the prompt in any body."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.request.prompt_text import MEDIA_BYTES, num_prompt_bytes, num_prompt_ids, prompt_text

IMAGE = "data:image/png;base64," + "A" * 5000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5) | st.just(IMAGE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "text", "x"]), inner),
    max_leaves=12,
)
FIELDS = ["messages", "prompt", "input", "tools", "system", "instructions", "cache_salt", "truncate_prompt_tokens"]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_body_is_too_strange(body: dict[str, Any]) -> None:
    before = orjson.dumps(body)
    assert isinstance(prompt_text(body), bytes)
    assert num_prompt_bytes(body) >= 0
    assert (num_prompt_ids(body) or 0) >= 0
    assert orjson.dumps(body) == before


@given(st.lists(st.builds(user, JSON), min_size=1, max_size=4), st.lists(st.builds(user, JSON), max_size=3))
def test_messages_that_follow_change_no_byte_before_them(turns: list[Any], more: list[Any]) -> None:
    first, longer = prompt_text({"messages": turns}), prompt_text({"messages": turns + more})
    assert longer.startswith(first)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"cache_salt": "a"}, {"cache_salt": "b"}, id="salt"),
        pytest.param({"prompt_cache_key": "a"}, {"prompt_cache_key": "b"}, id="key"),
        pytest.param({"documents": [{"text": "a"}]}, {}, id="documents"),
        pytest.param({"tools": [{"name": "a"}]}, {"tools": [{"name": "b"}]}, id="tools"),
        pytest.param({"system": "a"}, {}, id="system"),
        pytest.param({"instructions": "a"}, {"instructions": "b"}, id="instructions"),
    ],
)
def test_fields_that_come_before_the_prompt_tell_prompts_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = (prompt_text({"messages": [user("x" * 600)], **fields})[:512] for fields in (one, other))
    assert first != second


def test_an_image_is_short_and_another_image_differs() -> None:
    texts = [prompt_text({"messages": [user([image(url)])]}) for url in (IMAGE, IMAGE, IMAGE[:-9] + "B" + IMAGE[-8:])]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) < 1000


def test_an_image_in_the_result_of_a_tool_is_short() -> None:
    result = {"type": "tool_result", "content": [{"type": "image", "source": {"type": "base64", "data": IMAGE}}]}
    assert len(prompt_text({"messages": [user([result])]})) < 1000


def test_text_in_parts_is_not_shortened() -> None:
    assert b"x" * 5000 in prompt_text({"messages": [user([{"type": "text", "text": "x" * 5000}])]})


@pytest.mark.parametrize(
    ("body", "num_bytes"),
    [
        ({"messages": [user("four"), {"role": "tool", "content": None}]}, 4),
        ({"messages": [user([{"type": "text", "text": "four"}, image(IMAGE)])]}, 4 + MEDIA_BYTES),
        ({"messages": [{"role": "assistant", "tool_calls": ["ab"]}]}, len('["ab"]')),
        ({"messages": [user("é")], "tools": ["ab"]}, 2 + len('["ab"]')),
        ({"messages": [user("four")], "system": [{"type": "text", "text": "five5"}]}, 9),
        ({"prompt": ["one", "three"]}, 8),
        ({"prompt": [1, 2, 3]}, 0),
        ({"input": [user([{"type": "input_text", "text": "four"}])], "instructions": "be"}, 6),
        ({"input": "four"}, 4),
        ({}, 0),
    ],
)
def test_the_size_is_that_of_the_text(body: dict[str, Any], num_bytes: int) -> None:
    assert num_prompt_bytes(body) == num_bytes


@pytest.mark.parametrize(
    ("body", "num_ids"),
    [
        ({"prompt": [1, 2, 3]}, 3),
        ({"input": [1, 2]}, 2),
        ({"prompt": [[1, 2], [3]]}, None),
        ({"prompt": ["a"]}, None),
        ({"prompt": []}, None),
        ({"prompt": [1, 2, 3], "truncate_prompt_tokens": 2}, None),
    ],
)
def test_ids_are_counted_if_they_are_one_whole_prompt(body: dict[str, Any], num_ids: int | None) -> None:
    assert num_prompt_ids(body) == num_ids
