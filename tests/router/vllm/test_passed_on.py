"""Chats and completions for models that only vLLM servers serve: what the router checks, and what it leaves to vLLM."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from baton_serve.core.protocol.openai.passed_on import STRIPPED
from baton_serve.router.request.splits import WHOLE, table, why_whole
from baton_serve.router.steps.decode import StreamOpening
from tests.kits.router.cluster import Cluster, body_for, chat, events, eventually
from tests.kits.router.stub_workers import Hang, Raw, Refuse
from tests.kits.router.vllm_server import add_vllm, add_vllm_pair

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


UNREAD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}}),
    (CHAT, {"structured_outputs": {"regex": "a+"}, "min_tokens": 2, "stop": ["x", "y", "z", "u", "v"]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, IMAGE]}]}),
    (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": None},
            ]
        },
    ),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low", "some_future_field": [1]}),
    (CHAT, {"temperature": 5.5, "logit_bias": None}),
    (COMPLETIONS, {"suffix": "s", "logprobs": 9, "vllm_xargs": {"mine": 1}}),
]


@pytest.mark.parametrize(("path", "more"), UNREAD)
async def test_parameters_that_the_router_does_not_act_on_reach_both_unread(
    cluster: Cluster, path: str, more: dict[str, Any]
) -> None:
    legs = await add_vllm_pair(cluster)
    answer = await cluster.post(body_for(path, **more), path)
    assert answer.status_code == 200, answer.text
    for server in legs:
        assert len(server.bodies) == 1
        assert {name: server.bodies[0].get(name) for name in more if name != "min_tokens"} == {
            name: value for name, value in more.items() if name != "min_tokens"
        }
    cluster.check_idle()


@pytest.mark.parametrize(
    ("path", "more", "code", "param"),
    [
        (CHAT, {"model": None}, "missing_required_parameter", "model"),
        (CHAT, {"messages": []}, "empty_array", "messages"),
        (CHAT, {"messages": "hi"}, "invalid_type", "messages"),
        (CHAT, {"stream": "true"}, "invalid_type", "stream"),
        (CHAT, {"stream_options": True}, "invalid_type", "stream_options"),
        (CHAT, {"stream_options": {"include_usage": 1}}, "invalid_type", "stream_options.include_usage"),
        (CHAT, {"max_tokens": "4"}, "invalid_type", "max_tokens"),
        (CHAT, {"max_completion_tokens": 1.5}, "invalid_type", "max_completion_tokens"),
        (CHAT, {"n": "2"}, "invalid_type", "n"),
        (CHAT, {"priority": 1001}, "integer_above_max_value", "priority"),
        (CHAT, {"user": 5}, "invalid_type", "user"),
        (COMPLETIONS, {"prompt": None}, "missing_required_parameter", "prompt"),
    ],
)
async def test_parameters_that_the_router_acts_on_are_checked(
    cluster: Cluster, path: str, more: dict[str, Any], code: str, param: str
) -> None:
    legs = await add_vllm_pair(cluster)
    answer = await cluster.post(body_for(path, **more), path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
    assert not any(server.bodies for server in legs)


async def test_deep_nesting_is_refused_before_anybody_is_asked(cluster: Cluster) -> None:
    await add_vllm_pair(cluster)
    raw = json.dumps(chat(x="X")).replace('"X"', "[" * 500 + "]" * 500)
    answer = await cluster.client.post(CHAT, content=raw)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


async def test_where_our_workers_serve_the_model_too_the_rules_are_strict(cluster: Cluster) -> None:
    await add_vllm(cluster, "both")
    await cluster.add("both")
    answer = await cluster.post(chat(store=True))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")


# --- what reaches into other requests, or other hosts


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_fields_that_name_other_requests_and_hosts_are_taken_out(cluster: Cluster, path: str) -> None:
    server, _ = await add_vllm(cluster, "both")
    evil = {name: {"remote_host": "evil"} for name in STRIPPED}
    asked = body_for(path, **evil, vllm_xargs={"kv_transfer_params": "evil", "mine": 1}, stream=True)
    headers = {"x-data-parallel-rank": "1", "x-request-id": "theirs", "x-vllm-priority": "-9", "x-session-id": "s"}
    answer = await cluster.client.post(path, json=asked, headers=headers)
    assert answer.status_code == 200
    assert not server.bodies[0].keys() & set(STRIPPED)
    assert server.bodies[0]["vllm_xargs"] == {"mine": 1}
    assert server.headers[0]["x-request-id"] == answer.headers["x-request-id"] != "theirs"
    assert not server.headers[0].keys() & {"x-data-parallel-rank", "x-vllm-priority", "x-session-id"}


@pytest.mark.settings(priority_classes=["urgent=-5", "normal=0"], client_priority="trusted")
async def test_the_priority_in_the_header_is_the_routers_alone(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both")
    hang = Hang()
    server.script.extend([hang, hang])
    urgent = {"x-baton-priority": "urgent"}
    posts = [asyncio.create_task(cluster.post(body, headers=urgent)) for body in (chat(), chat(priority=3))]
    await eventually(lambda: len(server.bodies) == 2)
    assert [request.asked.priority for request in cluster.active] == [-5, -5]
    hang.release.set()
    assert [(await post).status_code for post in posts] == [200, 200]
    assert sorted(body.get("priority", 0) for body in server.bodies) == [0, 3]


# --- what P and D cannot share

#: A body for each row of the table.
WHOLE_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "n": (CHAT, {"n": 2}),
    "best_of": (COMPLETIONS, {"best_of": 2}),
    "use_beam_search": (CHAT, {"use_beam_search": True}),
    "prompt": (COMPLETIONS, {"prompt": ["one", "two"]}),
    "prompt_embeds": (COMPLETIONS, {"prompt": None, "prompt_embeds": "AAAA"}),
    "prompt_logprobs": (CHAT, {"prompt_logprobs": 0}),
    "echo": (COMPLETIONS, {"echo": True}),
    "max_tokens": (COMPLETIONS, {"max_tokens": 0}),
    "max_completion_tokens": (CHAT, {"max_completion_tokens": 0}),
    "tool_choice": (CHAT, {"tools": TOOLS, "tool_choice": "required"}),
    "truncate_prompt_tokens": (CHAT, {"truncate_prompt_tokens": -1}),
    "routed_experts_prompt_start": (CHAT, {"routed_experts_prompt_start": 4}),
}
SHARED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"n": 1, "echo": False, "use_beam_search": False, "prompt_logprobs": None, "tool_choice": "auto"}),
    (CHAT, {"truncate_prompt_tokens": 5, "routed_experts_prompt_start": 0}),
    (COMPLETIONS, {"prompt": [1, 2, 3], "logprobs": 3}),
    (COMPLETIONS, {"prompt": ["only one"]}),
    (COMPLETIONS, {"prompt": [[1, 2, 3]]}),
]


def test_each_row_of_the_table_has_a_body_among_these_tests() -> None:
    assert [row.field for row in WHOLE] == [*WHOLE_BODIES]
    assert all(f"| `{row.field}` | {row.value} | {row.why} |" in table() for row in WHOLE)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", WHOLE_BODIES)
async def test_a_request_that_cannot_be_split_goes_whole_to_one_decode_worker(
    cluster: Cluster, field: str, stream: bool
) -> None:
    p, d = await add_vllm_pair(cluster)
    path, more = WHOLE_BODIES[field]
    asked = {name: value for name, value in body_for(path, **more, stream=stream).items() if value is not None}
    row = why_whole(asked)
    assert row is not None and row.field == field
    assert (await cluster.post(asked, path)).status_code == 200
    assert (p.bodies, len(d.bodies)) == ([], 1)
    assert d.bodies[0] == asked
    cluster.check_idle()


async def test_a_forced_function_goes_whole_as_well(cluster: Cluster) -> None:
    p, d = await add_vllm_pair(cluster)
    choice = {"type": "function", "function": {"name": "f"}}
    assert (await cluster.post(chat(tools=TOOLS, tool_choice=choice))).status_code == 200
    assert (p.bodies, d.bodies[0]["tool_choice"]) == ([], choice)


@pytest.mark.parametrize(("path", "more"), SHARED)
async def test_a_request_that_can_be_split_goes_to_both(cluster: Cluster, path: str, more: dict[str, Any]) -> None:
    p, d = await add_vllm_pair(cluster)
    assert (await cluster.post(body_for(path, **more), path)).status_code == 200
    assert len(p.bodies) == len(d.bodies) == 1
    assert d.bodies[0]["kv_transfer_params"]["do_remote_prefill"] is True


# --- vLLM's own errors


@pytest.mark.parametrize("status", [400, 404, 422, 501])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_comes_back_as_it_is_and_is_not_held_against_the_worker(
    cluster: Cluster, status: int, stream: bool
) -> None:
    server, worker = await add_vllm(cluster, "both")
    error = {"error": {"message": "m" * 3000, "type": "BadRequestError", "param": None, "code": status}}
    for _ in range(8):
        server.script.append(Refuse(status, error))
        answer = await cluster.post(chat(stream=stream))
        assert (answer.status_code, answer.json()) == (status, error)
    assert len(server.bodies) == 8, "no other worker could do better"
    assert worker.standing.breaker.trusts


async def test_the_last_error_of_a_failing_server_comes_back_as_well(cluster: Cluster) -> None:
    _, d = await add_vllm_pair(cluster)
    error = {"error": {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}}
    d.script.extend(Refuse(500, error) for _ in range(9))
    answer = await cluster.post(chat())
    assert (answer.status_code, answer.json()) == (500, error)
    assert len(d.bodies) > 1


# --- the first content


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ERROR = b'data: {"error":{"message":"boom","type":"InternalServerError","code":500}}\n\ndata: [DONE]\n\n'
COMMENT = b": keep-alive\n\n"


class Chunks:
    """An answer that comes in these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.left = [*chunks]

    async def chunk(self) -> bytes:
        return self.left.pop(0)

    def fail_after(self, _timeout_s: float) -> None:
        """It never does."""


def beginning(cluster: Cluster) -> StreamOpening:
    settings = cluster.settings
    return StreamOpening(None, settings.max_event_bytes, settings.max_answer_bytes)


@pytest.mark.interpreted
async def test_the_first_content_and_not_the_role_ends_the_wait(cluster: Cluster) -> None:
    answer: Any = Chunks(ROLE, COMMENT + COMMENT, TOKEN, END)
    assert await beginning(cluster).read(answer, 1.0) == ROLE + COMMENT + COMMENT + TOKEN
    assert answer.left == [END]


@pytest.mark.interpreted
async def test_events_that_open_a_stream_are_not_kept_for_ever(cluster: Cluster) -> None:
    few = cluster.settings.max_event_bytes // len(ROLE) + 1
    answer: Any = Chunks(*[ROLE] * (few + 9))
    assert len(await beginning(cluster).read(answer, 1.0)) == few * len(ROLE)


async def test_the_time_to_the_first_token_counts_streams_alone(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both")
    server.script.append(Raw([ROLE, TOKEN, END]))
    assert (await cluster.post(chat(stream=True))).text.encode() == ROLE + TOKEN + END
    await cluster.post(chat())
    assert sum(cluster.metrics.ttft.counts) == 1


async def test_an_error_after_the_role_goes_to_another_worker(cluster: Cluster) -> None:
    first, _ = await add_vllm(cluster, "both")
    second, _ = await add_vllm(cluster, "both")
    for server in (first, second):
        server.script.append(Raw([ROLE, COMMENT, ERROR]))
    answer = await cluster.post(chat(stream=True))
    assert answer.status_code == 200
    assert "boom" not in answer.text
    assert len(first.bodies) + len(second.bodies) == 3
    assert events(answer.text)[-1] == "[DONE]"
