"""What clients are told: OpenAI's status, type, code and param."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest, validate
from tests.kits.router.cluster import Cluster, chat

TABLE: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "empty_array"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
    ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo", "unknown_parameter"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
        "messages[0].content[0]",
        "unsupported_parameter",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "missing_required_parameter",
    ),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": -1}, "temperature", "integer_below_min_value"),
    ({"top_p": 0}, "top_p", "integer_below_min_value"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "invalid_type"),
    ({"stream": 1}, "stream", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stop": [1]}, "stop[0]", "invalid_type"),
    ({"stop": ""}, "stop", "empty_string"),
    ({"seed": 2**63}, "seed", "integer_above_max_value"),
    ({"seed": 2.0**64}, "seed", "integer_above_max_value"),
    ({"seed": -(2.0**64)}, "seed", "integer_below_min_value"),
    ({"seed": 1.5}, "seed", "invalid_type"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "integer_above_max_value"),
    ({"user": "u" * 513}, "user", "string_above_max_length"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"include": 1}}, "stream_options.include", "unknown_parameter"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"min_tokens": 9}, "min_tokens", "invalid_value"),
    ({"frobnicate": 1}, "frobnicate", "unknown_parameter"),
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "unsupported_parameter"),
]


@pytest.mark.parametrize(("change", "param", "code"), TABLE, ids=lambda v: json.dumps(v)[:50])
def test_the_parameter_at_fault_is_named(change: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(ChatRequest, chat(**change))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert "pydantic" not in caught.value.message
    assert "Input" not in caught.value.message
    assert "after validation" not in caught.value.message


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": 5}, "prompt"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": 1}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_completions_name_the_parameter_at_fault_too(change: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(CompletionRequest, {"model": "m", "prompt": "x", **change})
    assert caught.value.param == param


def test_parameters_that_change_nothing_are_accepted() -> None:
    extra = {"n": 1, "tools": [], "response_format": {"type": "text"}, "store": False, "logprobs": None}
    assert validate(ChatRequest, chat(**extra)).max_new_tokens == 4


def test_the_prefill_leg_carries_the_whole_requests_min_tokens() -> None:
    leg = chat(max_tokens=1, min_tokens=9, kv_transfer_params={"do_remote_decode": True})
    assert validate(ChatRequest, leg).min_tokens == 9


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b"[1]", 400, "invalid_json"),
        (b'"\xff"', 400, "invalid_json"),
        (b"{}", 400, "missing_required_parameter"),
    ],
)
async def test_malformed_bodies_are_refused_in_our_shape(cluster: Cluster, raw: bytes, status: int, code: str) -> None:
    await cluster.fleet("prefill", "decode")
    response = await cluster.client.post("/v1/chat/completions", content=raw)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    cluster.check_idle()


async def test_a_body_that_is_no_json_is_refused_with_the_place_and_the_reason(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    response = await cluster.client.post("/v1/chat/completions", content=b'{"model": "\\ud800"}')
    message = response.json()["error"]["message"]
    assert message.startswith("We could not parse the JSON body of your request: ")
    assert "surrogate" in message and "line 1 column 12" in message


async def test_an_unknown_model_is_a_404_and_a_lack_of_workers_a_503(cluster: Cluster) -> None:
    response = await cluster.post(chat())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
    await cluster.add("prefill")
    assert (await cluster.post(chat())).status_code == 503
    await cluster.add("decode")
    response = await cluster.post(chat(model="other"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert (response.json()["error"]["param"], response.json()["error"]["type"]) == ("model", "invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
async def test_the_frameworks_errors_have_our_shape(
    cluster: Cluster, method: str, path: str, status: int, code: str
) -> None:
    await cluster.fleet("prefill", "decode")
    response = await cluster.client.request(method, path)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.settings(max_body_bytes=1024)
class TestSmallBodies:
    async def test_a_body_that_is_announced_as_too_large_is_refused(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        response = await cluster.post(chat(user="x" * 1024))
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")

    async def test_a_body_in_chunks_that_becomes_too_large_is_refused(self, cluster: Cluster) -> None:
        async def parts() -> Any:
            for _ in range(20):
                yield b" " * 100

        response = await cluster.client.post("/v1/chat/completions", content=parts())
        assert response.status_code == 413


@pytest.mark.settings(api_keys=("right", "also"), admin_token="boss")
class TestKeys:
    async def test_clients_need_one_of_the_keys(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        for key, status in [("wrong", 401), ("boss", 401), ("right", 200), ("also", 200)]:
            response = await cluster.post(chat(), headers={"authorization": f"Bearer {key}"})
            assert response.status_code == status
            models = await cluster.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert models.status_code == status
        response = await cluster.post(chat())
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert (await cluster.client.get("/health")).status_code == 200

    async def test_administrators_need_the_admin_token(self, cluster: Cluster) -> None:
        for key, status in [("right", 401), ("boss", 200)]:
            response = await cluster.client.get("/admin/requests", headers={"authorization": f"Bearer {key}"})
            assert response.status_code == status
        response = await cluster.client.post("/admin/abort", json={"all": True})
        assert response.status_code == 401 and "needs the admin token" in response.json()["error"]["message"]


@pytest.mark.settings(host="0.0.0.0", allow_anonymous=True)
async def test_a_port_that_is_open_to_everybody_has_no_admin_api_without_a_token(cluster: Cluster) -> None:
    response = await cluster.client.get("/admin/requests")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "admin_disabled")


async def test_the_openai_client_reads_answers_and_errors(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    async with openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="x", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        whole = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=4
        )
        assert whole.choices[0].message.content == " t0 t1 t2 t3"
        stream = await client.completions.create(model="m", prompt="hi", max_tokens=4, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == " t0 t1 t2 t3"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="m", messages=[], n=2)


async def test_a_body_that_says_nothing_of_json_is_told_what_is_missing(cluster: Cluster) -> None:
    response = await cluster.client.post("/admin/abort", content=b'{"all": true}')
    assert response.status_code == 400
    assert "content-type: application/json" in response.json()["error"]["message"]


async def test_the_schema_and_the_pages_tell_what_is_served(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    schema = (await cluster.client.get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/admin/requests", "/admin/abort"} <= set(schema["paths"])
    schemas = schema["components"]["schemas"]
    assert "ChatRequest" in schemas
    assert not [name for name, one in schemas.items() if "enum" in one and "description" in one]
    assert "/openapi.json" not in schema["paths"]
    assert (await cluster.client.get("/redoc")).status_code == 404, "it would load scripts from elsewhere"
    health = (await cluster.client.get("/health")).json()
    assert (health["models"], health["workers"], health["reachable_workers"]) == (["m"], 2, 2)
    assert (await cluster.client.get("/ready")).status_code == 200
    cluster.pool.leave_out(next(iter(cluster.pool)))
    assert (await cluster.client.get("/health")).json()["reachable_workers"] == 2, "one that drains can be reached"


async def test_metrics_count_what_happened(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    await cluster.post(chat(stream=True))
    await cluster.post(chat(model="other"))
    text = (await cluster.client.get("/metrics")).text
    for line in [
        'baton_router_requests_ended_total{outcome="done",reason=""} 1.0',
        'baton_router_refused_total{status="404"} 1.0',
        "baton_router_ttft_seconds_count 1.0",
        'baton_router_phase_seconds_count{phase="held"} 1.0',
        'baton_router_phase_seconds_count{phase="read"} 1.0',
        'baton_router_worker_in_flight{role="decode",worker="d1"} 0.0',
    ]:
        assert line in text
