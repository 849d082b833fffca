"""Requests in a dialect, on their way through a router: as chats to P and D, and their answers back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from baton_serve.core.protocol.errors import UnavailableError
from tests.kits.router.cluster import Cluster, eventually
from tests.kits.router.stub_workers import FIRST_TOKEN, Raw, Refuse, StreamThen, word
from tests.kits.router.vllm_server import add_vllm
from tests.kits.strict_types import count_of, messages_error_of
from tests.router.dialects.conftest import NUM_TOKENS, Spoken

MESSAGES_BODY = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
WHOLE = "".join(map(word, range(NUM_TOKENS)))
COUNT = "/v1/messages/count_tokens"


async def ask(cluster: Cluster, spoken: Spoken, **more: Any) -> list[Any]:
    """The events of a stream."""
    answer = await cluster.post(spoken.body(stream=True, **more), spoken.path)
    assert answer.status_code == 200, answer.text
    return spoken.events(answer.text)


# --- the way


async def test_a_request_is_a_chat_for_p_and_d(cluster: Cluster, spoken: Spoken) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    answer = await cluster.post(spoken.body(), spoken.path)
    assert (answer.status_code, spoken.text_of_whole(answer.text)) == (200, WHOLE)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["id"] == spoken.prefix + answer.headers["x-request-id"]
    for worker in (p, d):
        (body,) = worker.bodies
        assert body["messages"] == [{"role": "user", "content": "hi"}] and "input" not in body
    assert p.bodies[0]["kv_transfer_params"] == {"do_remote_decode": True}
    assert d.bodies[0]["kv_transfer_params"]["first_token"] == FIRST_TOKEN
    (ended,) = cluster.ended()
    assert (ended.endpoint, ended.outcome, ended.prefill_worker, ended.decode_worker) == (
        spoken.path,
        "done",
        "p0",
        "d1",
    )
    cluster.check_idle()


async def test_a_stream_begins_with_ps_token(cluster: Cluster, spoken: Spoken) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    hang = d.hangs()
    body = spoken.body(stream=True)
    async with cluster.client.stream("POST", spoken.path, json=body) as answer:
        parts = answer.aiter_text()
        text = await anext(parts)
        assert spoken.text_of(spoken.events(text)) == word(0)
        hang.release.set()
        text += "".join([part async for part in parts])
    events = spoken.events(text)
    assert spoken.text_of(events) == WHOLE
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert text.count('"message_start"') + text.count('"response.created"') == 1
    assert sum(cluster.metrics.ttft.counts) == 1
    cluster.check_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_p_ends_needs_no_d(cluster: Cluster, spoken: Spoken, stream: bool) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    p.finish_reason = "stop"
    if stream:
        events = await ask(cluster, spoken)
        assert spoken.text_of(events) == word(0)
    else:
        answer = await cluster.post(spoken.body(), spoken.path)
        assert spoken.text_of_whole(answer.text) == word(0)
    assert d.bodies == []
    cluster.check_idle()


@pytest.mark.parametrize("then", ["die", "stop", "error"])
@pytest.mark.parametrize("num_tokens", [1, 4, 99])
async def test_a_stream_goes_on_when_its_d_dies(cluster: Cluster, spoken: Spoken, then: str, num_tokens: int) -> None:
    """The client has the events that it would have had, each once."""
    p = await cluster.add("prefill")
    workers = [await cluster.add("decode") for _ in range(2)]
    undisturbed = await ask(cluster, spoken)
    acts = [StreamThen(num_tokens, then) for _ in workers]
    for worker, act in zip(workers, acts, strict=True):
        worker.script.append(act)
    request = asyncio.create_task(ask(cluster, spoken))
    await cluster.until_state("decoding")
    for worker, act in zip(workers, acts, strict=True):
        worker.script.clear()
        act.go.set()
    events = await request
    assert [event.type for event in events] == [event.type for event in undisturbed]
    assert spoken.text_of(events) == WHOLE
    assert cluster.metrics.resumed["resumed"] == 1
    if num_tokens < NUM_TOKENS - 2:
        assert p.bodies[-1]["kv_transfer_params"]["resume"]["token_ids"] == [
            FIRST_TOKEN + i for i in range(1 + num_tokens)
        ]
    cluster.check_idle()


async def test_an_answer_that_starts_again_begins_once(cluster: Cluster, spoken: Spoken) -> None:
    """P's token had no text, so the client has nothing yet; and nobody can go on for the D that died."""
    p, d = await cluster.fleet("prefill", "decode")
    p.first_text = ""
    hang = d.hangs()
    request = asyncio.create_task(ask(cluster, spoken))
    await cluster.until_state("reading")
    await cluster.add("both", digest="new", weights="others")
    for worker in (p, d):
        del cluster.limits[worker.name]
    cluster.announce()
    hang.reset = True
    hang.release.set()
    events = await request
    assert spoken.text_of(events) == WHOLE
    assert [event.type for event in events].count(events[0].type) == 1
    cluster.check_idle()


async def test_comments_of_a_worker_reach_the_client(cluster: Cluster, spoken: Spoken) -> None:
    """They show that the worker still computes. Those of a worker that names its tokens are for the router."""
    worker = await cluster.add("both", ours=False)
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}], "created": 5}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "created": 5}
    chunks = [f"data: {json.dumps(one)}\n\n".encode() for one in (chunk, last)]
    pieces = [chunks[0] * 2, b": keep-alive\n\n", chunks[1], b"data: [DONE]\n\n"]
    worker.script.append(Raw(list(pieces)))
    answer = await cluster.post(spoken.body(stream=True), spoken.path)
    assert ": keep-alive\n\n" in answer.text
    assert spoken.text_of(spoken.events(answer.text)) == "aa"


async def test_a_request_is_listed_and_aborted_by_the_id_of_its_answer(cluster: Cluster, spoken: Spoken) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(StreamThen(2, "hang"))
    request = asyncio.create_task(ask(cluster, spoken))
    await cluster.until_state("decoding")
    (listed,) = (await cluster.client.get("/admin/requests")).json()["requests"]
    assert listed["endpoint"] == spoken.path
    await cluster.client.post(f"/admin/requests/{spoken.prefix}{listed['id'][:8]}/abort")
    events = await request
    error = next(event for event in events if event.type == "error")
    assert "abort" in (error.message if spoken.path == "/v1/responses" else error.error.message)
    await eventually(cluster.is_idle)


async def test_a_client_that_leaves_is_told_to_the_worker(cluster: Cluster, spoken: Spoken) -> None:
    worker = await cluster.add("both")
    worker.script.append(StreamThen(2, "hang"))
    writer = await cluster.open(spoken.body(stream=True), spoken.path)
    await cluster.until_state("decoding")
    writer.close()
    await eventually(cluster.is_idle)
    assert cluster.metrics.outcomes["aborted", "client_gone"] == 1


async def test_vllm_gets_a_chat_where_it_serves_the_model_too(cluster: Cluster, spoken: Spoken) -> None:
    server, _ = await add_vllm(cluster, "both")
    ours = await cluster.add("both")
    for _ in range(4):
        answer = await cluster.post(spoken.body(), spoken.path)
        assert spoken.text_of_whole(answer.text) == WHOLE
    assert server.paths == [] and ours.bodies and server.bodies
    assert all("messages" in body for body in server.bodies)


@pytest.mark.settings(priority_classes=["urgent=-5", "normal=0"], client_priority="trusted")
class TestPriority:
    async def test_the_priority_in_the_header_is_the_workers_too(self, cluster: Cluster, spoken: Spoken) -> None:
        worker = await cluster.add("both")
        answer = await cluster.post(spoken.body(), spoken.path, headers={"x-baton-priority": "urgent"})
        assert (answer.status_code, worker.bodies[0]["priority"]) == (200, -5)

    async def test_the_priority_of_a_count_stays_in_the_router(self, cluster: Cluster) -> None:
        worker = await cluster.add("both")
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        answer = await cluster.post(body, COUNT, headers={"x-baton-priority": "urgent"})
        assert answer.status_code == 200 and "priority" not in worker.bodies[0]


# --- errors


async def test_an_error_in_the_stream_of_d_is_told_in_the_dialect(cluster: Cluster, spoken: Spoken) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    act = StreamThen(2, "error")
    d.error_code = 400
    d.script.append(act)
    events = spoken.events(await cluster.streamed(spoken.body(stream=True), act, after=word(2), path=spoken.path))
    assert events[-1].type == ("response.failed" if spoken.path == "/v1/responses" else "error")
    assert "broke" in events[-1].to_json()
    assert cluster.metrics.outcomes["failed", ""] == 1


async def test_a_stream_that_cannot_go_on_fails_in_the_dialect(cluster: Cluster, spoken: Spoken) -> None:
    worker = await cluster.add("both", ours=False)
    act = StreamThen(2, "die")
    worker.script.append(act)
    events = spoken.events(await cluster.streamed(spoken.body(stream=True), act, after=word(1), path=spoken.path))
    assert spoken.text_of(events) == word(0) + word(1)
    assert events[-1].type == ("response.failed" if spoken.path == "/v1/responses" else "error")
    assert cluster.metrics.outcomes["failed", "upstream_error"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_malformed_chat_is_a_failure_of_its_worker(cluster: Cluster, spoken: Spoken, stream: bool) -> None:
    worker = await cluster.add("both")
    bad = b'data: {"choices": [{"delta": {"content": 5}}]}\n\n'
    worker.script.append(Raw([bad * 2, b"data: [DONE]\n\n"]) if stream else Refuse(200, {"choices": []}))
    answer = await cluster.post(spoken.body(stream=stream), spoken.path)
    assert answer.status_code == 502
    assert "A worker's answer" in spoken.error_of(answer.json())[1]
    cluster.check_idle()


async def test_a_workers_error_names_the_parameter_of_the_dialect(cluster: Cluster, spoken: Spoken) -> None:
    worker = await cluster.add("both")
    name = "max_completion_tokens" if spoken.path == "/v1/responses" else "max_tokens"
    error = {
        "message": f"'{name}' is too large: 8.",
        "type": "invalid_request_error",
        "param": name,
        "code": "too_large",
    }
    worker.script.append(Refuse(400, {"error": error}))
    answer = await cluster.post(spoken.body(), spoken.path)
    assert answer.status_code == 400
    assert spoken.error_of(answer.json()) == ("invalid_request_error", f"'{spoken.limit}' is too large: 8.")
    if spoken.path == "/v1/responses":
        assert answer.json()["error"]["param"] == spoken.limit


@pytest.mark.parametrize(
    ("change", "status", "kinds"),
    [
        ({"model": "x"}, 404, ("invalid_request_error", "not_found_error")),
        ({"model": None}, 400, ("invalid_request_error", "invalid_request_error")),
        ({"n": 2}, 400, ("invalid_request_error", "invalid_request_error")),
        ({"stream": 1}, 400, ("invalid_request_error", "invalid_request_error")),
    ],
)
async def test_a_wrong_request_is_refused_in_the_dialect(
    cluster: Cluster, spoken: Spoken, change: dict[str, Any], status: int, kinds: tuple[str, str]
) -> None:
    worker = await cluster.add("both")
    answer = await cluster.post(spoken.body(**change), spoken.path)
    kind, message = spoken.error_of(answer.json())
    assert (answer.status_code, kind) == (status, kinds[spoken.path == "/v1/messages"])
    assert next(iter(change)) in message
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert worker.bodies == []


async def test_a_body_that_is_no_json_is_refused_in_the_dialect(cluster: Cluster, spoken: Spoken) -> None:
    answer = await cluster.client.post(spoken.path, content=b"{")
    assert answer.status_code == 400
    assert "JSON" in spoken.error_of(answer.json())[1]


async def test_the_lack_of_a_worker_is_told_as_an_error_of_the_dialect(cluster: Cluster, spoken: Spoken) -> None:
    await cluster.add("both")
    (worker,) = cluster.pool
    worker.usage.limit = 0
    request = asyncio.create_task(cluster.post(spoken.body(), spoken.path))
    await cluster.until_state("queued")
    (live,) = cluster.active
    live.stop(UnavailableError("nobody", retry_after_s=7))
    answer = await request
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    kind = "overloaded_error" if spoken.path == "/v1/messages" else "service_unavailable_error"
    assert spoken.error_of(answer.json()) == (kind, "nobody")


async def test_too_many_messages_are_refused_by_the_name_that_they_have(cluster: Cluster, spoken: Spoken) -> None:
    await cluster.add("both")
    name = "input" if spoken.path == "/v1/responses" else "messages"
    many = [{"role": "user", "content": "a"}] * (cluster.settings.max_messages + 1)
    answer = await cluster.post(spoken.body(**{name: many}), spoken.path)
    assert answer.status_code == 400
    if name == "input":
        assert answer.json()["error"]["param"] == "input"


@pytest.mark.parametrize("depth", [200, 248, 252, 260, 900])
async def test_deep_nesting_is_refused_or_served(cluster: Cluster, spoken: Spoken, depth: int) -> None:
    """What the router repeats, or puts deeper, can be written as far as it is taken."""
    await cluster.add("both")
    deep: dict[str, Any] = {}
    for _ in range(depth):
        deep = {"a": deep}
    tool = {"type": "function", "parameters": deep} if spoken.limit == "max_output_tokens" else {"input_schema": deep}
    body = spoken.body(tools=[{"name": "f", **tool}], tool_choice="none" if "type" in tool else {"type": "none"})
    answer = await cluster.client.post(spoken.path, content=json.dumps(body))
    assert answer.status_code == (200 if depth < 246 else 400), answer.text
    cluster.check_idle()


# --- what is Anthropic's alone


async def test_tokens_are_counted_by_a_worker(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    body = {"model": "m", "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    answer = await cluster.post(body, COUNT)
    assert (answer.status_code, count_of(answer.text)) == (200, 2)
    (asked,) = p.bodies + d.bodies
    assert asked == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    }
    assert [one.endpoint for one in cluster.ended()] == [COUNT]
    cluster.check_idle()


async def test_an_agent_may_have_a_thousand_tools_with_long_names(cluster: Cluster) -> None:
    """As with some MCP servers, whose names come before those of their tools."""
    worker = await cluster.add("both")
    properties = {f"p{i}": {"type": "string", "description": "what it is"} for i in range(5)}
    schema = {"type": "object", "properties": properties, "required": ["p0"]}
    names = [f"mcp__{i:0123}" for i in range(1000)]
    tools = [{"name": name, "description": "Does it.", "input_schema": schema} for name in names]
    answer = await cluster.post({**MESSAGES_BODY, "tools": tools}, "/v1/messages")
    assert answer.status_code == 200, answer.text
    (body,) = worker.bodies
    assert [tool["function"]["name"] for tool in body["tools"]] == names and {len(name) for name in names} == {128}


async def test_a_refusal_to_count_names_the_parameter_of_the_dialect(cluster: Cluster) -> None:
    worker = await cluster.add("both")
    error = {
        "message": "'reasoning_effort' is not supported",
        "type": "invalid_request_error",
        "param": "reasoning_effort",
        "code": None,
    }
    worker.script.append(Refuse(400, {"error": error}))
    answer = await cluster.post({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, COUNT)
    assert answer.status_code == 400
    assert messages_error_of(answer.text).error.message == "'output_config.effort' is not supported"


@pytest.mark.settings(api_keys=["right"])
@pytest.mark.parametrize("path", ["/v1/messages", COUNT, "/v1/messages?beta=true"])
async def test_headers_of_anthropic_bring_the_key_and_take_back_the_id(cluster: Cluster, path: str) -> None:
    await cluster.add("both")
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if "count" not in path:
        body["max_tokens"] = 5
    headers = {"x-api-key": "right", "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    answer = await cluster.client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    refused = await cluster.client.post(path, json=body, headers={"x-api-key": "wrong"})
    assert refused.status_code == 401
    assert messages_error_of(refused.text).error.type == "authentication_error"
    assert refused.headers["request-id"] == messages_error_of(refused.text).request_id


@pytest.mark.settings(api_keys=["right"])
@pytest.mark.parametrize(("bearer", "status"), [("right", 200), ("wrong", 400)])
async def test_a_request_has_one_key(cluster: Cluster, bearer: str, status: int) -> None:
    """Some clients send theirs in both headers."""
    await cluster.add("both")
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    headers = {"x-api-key": "right", "authorization": f"Bearer {bearer}"}
    answer = await cluster.client.post("/v1/messages", json=body, headers=headers)
    assert answer.status_code == status, answer.text
