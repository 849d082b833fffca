"""What vLLM's P and D are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.vllm.engine.bodies import decode_body, prefill_body
from baton_serve.router.vllm.engine.continuing import can_continue

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
PARAMS = b'{"remote_block_ids": [[1,  2]], "x":18446744073709551615}'


def to_p(fields: dict[str, Any], token_ids: bytes = b"") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(b"".join(prefill_body(ClientBody(fields), token_ids)))
    return made


def to_d(
    fields: dict[str, Any], params: bytes | None = PARAMS, token_ids: bytes = b"", num_sent: int = 0
) -> dict[str, Any]:
    body = decode_body(ClientBody(fields), params, token_ids, names_tokens=True, num_sent=num_sent)
    made: dict[str, Any] = json.loads(b"".join(body))
    return made


def test_p_computes_one_token_and_keeps_the_blocks() -> None:
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9, "min_tokens": 3}
    assert to_p(asked) == {
        **CHAT,
        "stream": False,
        "max_tokens": 1,
        "return_token_ids": True,
        "kv_transfer_params": {"do_remote_decode": True},
    }
    assert to_p({**CHAT, "max_completion_tokens": 9})["max_completion_tokens"] == 1


def test_p_never_computes_more_than_one_token() -> None:
    """A completion does not know ``max_completion_tokens``, so P would compute the usual sixteen."""
    assert to_p({"model": "m", "prompt": "hi", "max_completion_tokens": 5})["max_tokens"] == 1


def test_d_gets_what_the_client_asked_and_what_p_said() -> None:
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9, "tools": [{"a": 1}]}
    made = to_d(asked, token_ids=b"[1,2]")
    assert made.pop("kv_transfer_params") == {"remote_block_ids": [[1, 2]], "x": 2**64 - 1, "prompt_token_ids": [1, 2]}
    assert made == {**asked, "return_token_ids": True}


@pytest.mark.parametrize("more", [{"min_tokens": "5"}, {"max_tokens": [1]}, {"return_token_ids": "yes"}])
def test_parameters_that_only_vllm_judges_reach_it_as_they_are(more: dict[str, Any]) -> None:
    body = decode_body(ClientBody({**CHAT, **more}), None, b"", names_tokens=False)
    assert json.loads(b"".join(body)) == {**CHAT, **more}


def test_a_completion_is_sent_its_prompt_as_ids() -> None:
    made = to_d({"model": "m", "prompt": "hi"}, token_ids=b"[1,2]")
    assert (made["prompt"], "prompt_token_ids" in made["kv_transfer_params"]) == ([1, 2], False)
    assert to_d({"model": "m", "prompt": "hi"}, None) == {"model": "m", "prompt": "hi", "return_token_ids": True}


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"max_tokens": 9}, {"max_tokens": 6}),
        ({"max_completion_tokens": 9, "min_tokens": 5}, {"max_completion_tokens": 6, "min_tokens": 2}),
        ({"max_tokens": 9, "min_tokens": 2}, {"max_tokens": 6, "min_tokens": 0}),
        ({}, {}),
    ],
)
def test_tokens_that_were_sent_count_against_the_limits(limits: dict[str, int], left: dict[str, int]) -> None:
    made = to_d({**CHAT, **limits}, None, b"[1,2,7,8,9]", num_sent=3)
    assert made == {
        **CHAT,
        **left,
        "return_token_ids": True,
        "kv_transfer_params": {"prompt_token_ids": [1, 2, 7, 8, 9]},
    }


def test_the_usual_limit_of_a_completion_is_reduced_too() -> None:
    assert to_d({"model": "m", "prompt": "hi"}, None, b"[1,2,3]", num_sent=2)["max_tokens"] == 14
    ignored = {"model": "m", "prompt": "hi", "max_completion_tokens": 5}
    assert to_d(ignored, None, b"[1,2,3]", num_sent=2)["max_tokens"] == 14


@pytest.mark.parametrize(
    "fields",
    [
        CHAT,
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "seed": 5, "max_tokens": 3, "n": 1},
        {**CHAT, "temperature": 1, "top_p": 0.5, "stop": [], "tools": [], "logprobs": False, "tool_choice": None},
        {"model": "m", "prompt": [1, 2, 3]},
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
def test_a_stream_of_an_ordinary_request_can_be_continued(fields: dict[str, Any]) -> None:
    assert can_continue(fields)


@pytest.mark.parametrize(
    "extra",
    [
        {"seed": 5, "temperature": 1},
        {"seed": 5, "temperature": None},
        {"presence_penalty": 0.5},
        {"stop": ["END"]},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"logprobs": True},
        {"stream_options": {"continuous_usage_stats": True}},
        {"n": 2},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"something_new": 1},
        {"min_tokens": "5"},
    ],
)
def test_a_stream_of_a_request_out_of_the_ordinary_cannot_be_continued(extra: dict[str, Any]) -> None:
    assert not can_continue({**CHAT, **extra})
