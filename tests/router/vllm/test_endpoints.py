"""vLLM's other endpoints: whole to one worker, and its answer comes back as it is."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from baton_serve.router.request.endpoints import ENDPOINTS
from tests.kits.router.cluster import Cluster, eventually
from tests.kits.router.stub_workers import Hang, Raw, Refuse, Reset
from tests.kits.router.vllm_server import STREAMS, VllmServer, add_vllm, event
from tests.kits.strict_types import messages_error_of

STREAMED = sorted(STREAMS)
PATHS = pytest.mark.parametrize("path", ENDPOINTS)
STREAMED_PATHS = pytest.mark.parametrize("path", STREAMED)


def whole(path: str) -> bytes:
    return b"".join(event(name, data) for name, data in STREAMS[path])


async def two_of_one_script(cluster: Cluster) -> list[VllmServer]:
    """Two servers; whichever is asked first follows the script."""
    servers = [(await add_vllm(cluster, "both"))[0] for _ in range(2)]
    servers[1].script = servers[0].script
    return servers


@PATHS
async def test_a_request_goes_whole_to_one_decode_worker(cluster: Cluster, path: str) -> None:
    prefill, _ = await add_vllm(cluster, "prefill")
    decode, _ = await add_vllm(cluster, "decode")
    asked = {"model": "m", "input": "hi", "tools": [{"a": 1}], "min_tokens": "5"}
    answer = await cluster.post({**asked, "kv_transfer_params": {"remote_host": "evil"}, "request_id": "other"}, path)
    assert (answer.status_code, answer.json()) == (200, {"path": path, "body": asked})
    assert answer.headers["content-type"] == "application/json"
    assert prefill.bodies == []
    assert decode.headers[0]["x-request-id"] == answer.headers["x-request-id"]
    assert [request.endpoint for request in cluster.ended()] == [path]
    cluster.check_idle()


@STREAMED_PATHS
async def test_a_stream_ends_with_the_answer(cluster: Cluster, path: str) -> None:
    await add_vllm(cluster, "both")
    answer = await cluster.post({"model": "m", "input": "hi", "stream": True}, path)
    assert answer.content == whole(path)
    assert answer.headers["content-type"].startswith("text/event-stream")
    metrics = cluster.metrics
    assert sum(metrics.ttft.counts) == metrics.outcomes["done", ""] == 1
    cluster.check_idle()


async def test_an_endpoint_that_does_not_stream_is_not_asked_to(cluster: Cluster) -> None:
    await add_vllm(cluster, "both")
    answer = await cluster.post({"model": "m", "input": "hi", "stream": True}, "/v1/embeddings")
    assert answer.json()["body"]["stream"] is True


@STREAMED_PATHS
@pytest.mark.parametrize("then", ["die", "stop"])
async def test_a_stream_that_breaks_off_says_so_in_an_event_with_a_name(cluster: Cluster, path: str, then: str) -> None:
    server, _ = await add_vllm(cluster, "both")
    cut = whole(path)[:-10]
    server.script.append(Raw([cut], then))
    answer = await cluster.post({"model": "m", "input": "hi", "stream": True}, path)
    good = cut[: cut.rindex(b"\n\n") + 2]
    assert answer.content.startswith(good + b'event: error\ndata: {"error":{')
    assert dict(cluster.metrics.outcomes) == {("failed", "upstream_error"): 1}


@STREAMED_PATHS
async def test_before_the_first_content_another_worker_takes_over(cluster: Cluster, path: str) -> None:
    servers = await two_of_one_script(cluster)
    first_two = b"".join(event(name, data) for name, data in STREAMS[path][:2])
    servers[0].script.append(Raw([first_two], "die"))
    answer = await cluster.post({"model": "m", "input": "hi", "stream": True}, path)
    assert answer.content == whole(path)
    assert [len(server.bodies) for server in servers] == [1, 1]


async def test_another_worker_takes_over_an_unstreamed_request(cluster: Cluster) -> None:
    servers = await two_of_one_script(cluster)
    servers[0].script.append(Reset())
    answer = await cluster.post({"model": "m", "input": "hi"}, "/v1/embeddings")
    assert answer.status_code == 200
    assert cluster.metrics.retries["decode"] == 1


async def test_an_error_event_in_a_stream_is_passed_on_and_counted(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both")
    error = event("error", {"error": {"type": "internal_error", "message": "boom"}})
    act = Raw([event("content_block_delta", {}), None, error])
    server.script.append(act)
    asked = {"model": "m", "messages": [], "stream": True}
    said = await cluster.streamed(asked, act, after="content_block_delta", path="/v1/messages")
    assert said.endswith(error.decode())
    assert cluster.metrics.outcomes["failed", ""] == 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/embeddings"])
@pytest.mark.parametrize("status", [400, 404, 501])
async def test_vllms_own_error_keeps_its_shape(cluster: Cluster, path: str, status: int) -> None:
    server, worker = await add_vllm(cluster, "both")
    error = {"type": "error", "error": {"type": "BadRequestError", "message": "no such thing"}}
    for _ in range(8):
        server.script.append(Refuse(status, error))
        answer = await cluster.post({"model": "m"}, path)
        assert (answer.status_code, answer.json()) == (status, error)
    assert len(server.bodies) == 8 and worker.standing.breaker.trusts


async def test_bytes_come_with_the_headers_that_describe_them(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both")
    headers = {"metadata": '{"shape":[2]}', "content-type": "application/octet-stream", "x-other": "1"}
    server.script.append(web.Response(body=b"\x00\xff", headers=headers))
    answer = await cluster.post({"model": "m", "input": "hi", "encoding_format": "bytes"}, "/v1/embeddings")
    assert (answer.content, answer.headers["content-type"]) == (b"\x00\xff", "application/octet-stream")
    assert answer.headers["metadata"] == '{"shape":[2]}' and "x-other" not in answer.headers


# --- which models


@pytest.mark.parametrize("path", [path for path, one in ENDPOINTS.items() if not (one.is_everywhere or one.is_dialect)])
async def test_our_own_models_do_not_have_the_other_endpoints_of_vllm(cluster: Cluster, path: str) -> None:
    worker = await cluster.add("both")
    answer = await cluster.post({"model": "m", "input": "hi"}, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_supported")
    assert worker.bodies == []


async def test_a_body_may_leave_out_the_only_model(cluster: Cluster) -> None:
    await add_vllm(cluster, "both", adapters=("lora",))
    await cluster.add("both", model="ours")
    answer = await cluster.post({"prompt": "hi"}, "/classify")
    assert (answer.status_code, answer.json()["body"]) == (200, {"prompt": "hi"})
    await add_vllm(cluster, "both", model="other")
    refused = await cluster.post({"prompt": "hi"}, "/classify")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")


async def test_adapters_are_listed_with_their_model_and_served(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both", adapters=("lora",))
    cards = (await cluster.client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("m", None), ("lora", "m")]
    await cluster.post({"model": "lora", "input": "hi"}, "/v1/responses")
    assert server.bodies[0]["model"] == "lora"


async def test_an_unknown_model_is_not_found(cluster: Cluster) -> None:
    await add_vllm(cluster, "both")
    answer = await cluster.post({"model": "x", "input": "hi"}, "/v1/embeddings")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


# --- what is refused


@pytest.mark.parametrize("field", [{"background": True}, {"previous_response_id": "resp_1"}])
async def test_a_request_that_needs_a_store_of_responses_is_refused(cluster: Cluster, field: dict[str, Any]) -> None:
    server, _ = await add_vllm(cluster, "both")
    answer = await cluster.post({"model": "m", "input": "hi", **field}, "/v1/responses")
    assert answer.status_code == 400
    assert "store" in answer.json()["error"]["message"]
    assert server.bodies == []


async def test_stored_responses_are_not_found(cluster: Cluster) -> None:
    calls = [("GET", "resp_1"), ("DELETE", "resp_1"), ("POST", "resp_1/cancel"), ("GET", "resp_1/input_items")]
    calls += [("POST", "compact"), ("POST", "input_tokens"), ("PUT", "resp_1"), ("PATCH", "x/y/z")]
    for method, below in calls:
        answer = await cluster.client.request(method, f"/v1/responses/{below}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_supported")


async def test_bodies_with_files_are_refused(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both")
    answer = await cluster.client.post("/v1/audio/transcriptions", files={"file": b"RIFF"}, data={"model": "m"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_content_type")
    assert server.bodies == []


@pytest.mark.parametrize(
    ("more", "param"), [({"stream": 1}, "stream"), ({"model": 5}, "model"), ({"priority": "x"}, "priority")]
)
async def test_parameters_that_the_router_acts_on_are_checked(
    cluster: Cluster, more: dict[str, Any], param: str
) -> None:
    await add_vllm(cluster, "both")
    answer = await cluster.post({"model": "m", "input": "hi", **more}, "/v1/responses")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# --- the same front as for chats


async def test_a_client_that_leaves_is_told_to_the_worker(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both")
    server.script.append(Hang())
    writer = await cluster.open({"model": "m", "input": "hi"}, "/v1/embeddings")
    await eventually(lambda: len(server.bodies) == 1)
    writer.close()
    await eventually(cluster.is_idle)
    assert cluster.metrics.outcomes["aborted", "client_gone"] == 1


async def test_a_request_is_listed_and_can_be_aborted(cluster: Cluster) -> None:
    server, _ = await add_vllm(cluster, "both")
    server.script.append(Hang())
    await cluster.open({"model": "m", "input": "hi", "user": "me"}, "/v1/responses")
    await eventually(lambda: len(server.bodies) == 1)
    listed = (await cluster.client.get("/admin/requests")).json()["requests"]
    assert [(one["endpoint"], one["user"]) for one in listed] == [("/v1/responses", "me")]
    assert (await cluster.client.post("/admin/abort", json={"user": "me"})).status_code == 200
    await eventually(cluster.is_idle)
    assert cluster.metrics.outcomes["aborted", "request_cancelled"] == 1


@pytest.mark.settings(api_keys=["right"])
class TestKeys:
    @PATHS
    async def test_every_endpoint_wants_a_key(self, cluster: Cluster, path: str) -> None:
        await add_vllm(cluster, "both")
        assert (await cluster.post({"model": "m"}, path)).status_code == 401
        headers = {"authorization": "Bearer right"}
        assert (await cluster.post({"model": "m"}, path, headers=headers)).status_code == 200
        assert (await cluster.client.get(path)).status_code == 401

    async def test_anthropics_clients_have_a_header_of_their_own(self, cluster: Cluster) -> None:
        await add_vllm(cluster, "both")
        for path, key, status in (
            ("/v1/messages", "right", 200),
            ("/v1/messages", "wrong", 401),
            ("/tokenize", "right", 401),
        ):
            assert (await cluster.post({"model": "m"}, path, headers={"x-api-key": key})).status_code == status

    async def test_the_schema_says_which_key_an_endpoint_wants(self, cluster: Cluster) -> None:
        schema = (await cluster.client.get("/openapi.json", headers={"authorization": "Bearer right"})).json()
        assert all(schema["paths"][path]["post"]["security"] == [{"api_key": []}] for path in ENDPOINTS)


class TestMessages:
    """Anthropic's messages for a model that vLLM alone serves go there as they came."""

    BODY = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}  # noqa: RUF012

    async def test_errors_of_the_router_are_told_in_the_dialect(self, cluster: Cluster) -> None:
        server, _ = await add_vllm(cluster, "both")
        server.script.append(Hang())
        answer = await cluster.post(self.BODY, "/v1/messages", headers={"x-request-timeout": "0.2"})
        assert answer.status_code == 504 and server.paths == ["/v1/messages"]
        assert messages_error_of(answer.text).error.type == "timeout_error"
        assert answer.headers["request-id"] == answer.headers["x-request-id"]

    async def test_errors_of_the_server_are_as_they_came(self, cluster: Cluster) -> None:
        server, _ = await add_vllm(cluster, "both")
        server.script.append(Refuse(400, {"type": "error", "error": {"type": "odd", "message": "no"}}))
        answer = await cluster.post(self.BODY, "/v1/messages")
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "odd")
