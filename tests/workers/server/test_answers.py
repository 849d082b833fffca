"""What clients get for chats and completions: bodies, streams, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_serve.workers.engine.api import EngineDeadError, EngineError, PromptTooLongError, ReadFailedError
from baton_serve.workers.limits import with_hand_off
from tests.kits.worker.front import EOS, MAX_MODEL_LEN, MODEL, SECRET, TEXT, chat, completion, front, text_of, tokens_of

HEX = "0123456789abcdef" * 2


def events(body: str) -> list[Any]:
    lines = [line for line in body.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


async def test_a_chat_answer() -> None:
    async with front() as worker:
        response = await worker.http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": HEX})
    assert response.status_code == 200 and response.headers["x-request-id"] == HEX
    body = response.json()
    created = body.pop("created")
    assert created > 1_700_000_000
    num_prompt, num_output = len(tokens_of("[user] hello\n")), len(tokens_of(TEXT)) + 1
    assert body == {
        "id": f"chatcmpl-{HEX}",
        "object": "chat.completion",
        "model": MODEL,
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


async def test_a_completion_of_text_and_of_token_ids() -> None:
    async with front() as worker:
        for prompt in ("hello", tokens_of("hello")):
            body = (await worker.http.post("/v1/completions", json=completion(prompt, max_tokens=3))).json()
            assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
            (choice,) = body["choices"]
            assert (choice.pop("finish_reason"), choice.pop("stop_reason")) == ("length", None)
            assert choice == {"index": 0, "text": text_of(tokens_of(TEXT)[:3]), "logprobs": None}
        assert worker.engine.requests[0].prompt_token_ids == worker.engine.requests[1].prompt_token_ids


async def test_a_chat_stream() -> None:
    async with front() as worker:
        response = await worker.http.post(
            "/v1/chat/completions", json=chat(stream=True, stream_options={"include_usage": True})
        )
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(response.text)
    assert done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == len(tokens_of(TEXT)) + 1
    assert all(chunk["usage"] is None for chunk in chunks)
    assert {chunk["object"] for chunk in (*chunks, usage)} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in (*chunks, usage)}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


async def test_a_completion_stream_with_a_stop_string() -> None:
    async with front() as worker:
        response = await worker.http.post("/v1/completions", json=completion(stream=True, stop=["until", "zzz"]))
        *chunks, done = events(response.text)
        assert done == "[DONE]" and "usage" not in chunks[0]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT[: TEXT.index("until")]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        await worker.engine.until_idle()
        assert len(worker.engine.aborted) == 1


async def test_chat_logprobs_list_every_shown_token() -> None:
    async with front() as worker:
        body = (await worker.http.post("/v1/chat/completions", json=chat(logprobs=True, top_logprobs=2))).json()
        stream = await worker.http.post("/v1/chat/completions", json=chat(logprobs=True, top_logprobs=2, stream=True))
    content = body["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == TEXT
    assert content[0]["logprob"] == -0.25 and content[0]["top_logprobs"][1]["logprob"] == -9999.0
    streamed = [c["choices"][0]["logprobs"] for c in events(stream.text)[:-1]]
    assert [entry for one in streamed if one for entry in one["content"]] == content


async def test_completion_logprobs_are_lists_of_one_length() -> None:
    async with front() as worker:
        body = (await worker.http.post("/v1/completions", json=completion(logprobs=1, max_tokens=99))).json()
    lists = body["choices"][0]["logprobs"]
    tokens = tokens_of(TEXT)
    assert {len(values) for values in lists.values()} == {len(tokens)}
    assert lists["text_offset"][:3] == [0, *[len(text_of(tokens[:n])) for n in (1, 2)]]
    assert lists["top_logprobs"][0] == {lists["tokens"][0]: -0.25}
    assert any(token.startswith("bytes:\\x") for token in lists["tokens"])


async def test_what_is_asked_reaches_the_engine() -> None:
    wish = {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": -4, "min_tokens": 2, "priority": 3}
    wish |= {"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.5, "logit_bias": {"7": -100}}
    async with front() as worker:
        response = await worker.http.post("/v1/chat/completions", json=chat(max_completion_tokens=5, **wish))
        assert response.status_code == 200
        await worker.http.post("/v1/chat/completions", json=chat(ignore_eos=True))
        first, second = worker.engine.requests
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 0, 0.1)
    assert (sampling.seed, sampling.min_tokens, sampling.min_tokens_banned) == (-4, 2, (EOS,))
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, 0.5, 1.5)
    assert (sampling.logit_bias, sampling.num_logprobs) == ({7: -100.0}, None)
    assert (first.max_tokens, first.priority, first.stop_token_ids) == (5, 3, frozenset({EOS}))
    assert second.stop_token_ids == frozenset() and second.sampling.temperature == 1.0
    assert second.max_tokens == 200 - len(second.prompt_token_ids)


async def test_a_completion_without_a_limit_has_openais() -> None:
    async with front(tokens_of("a") * 500) as worker:
        body = (await worker.http.post("/v1/completions", json=completion())).json()
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (16, "length")


async def test_without_a_limit_a_chat_goes_on_until_it_is_full() -> None:
    async with front(tokens_of("a") * 500) as worker:
        body = (await worker.http.post("/v1/chat/completions", json=chat())).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 200


@pytest.mark.parametrize("param", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("hand_off", [False, True])
async def test_a_limit_that_does_not_fit_is_refused_before_anything_is_sampled(param: str, hand_off: bool) -> None:
    """By P already: D would say so after the first token."""
    asked = {"kv_transfer_params": {"do_remote_decode": True}} if hand_off else {}
    async with front(tokens_of("a") * 500) as worker:
        first = (await worker.http.post("/v1/chat/completions", json=chat(max_tokens=1))).json()
        num_input = first["usage"]["prompt_tokens"]
        fits = 200 - num_input
        whole = await worker.http.post("/v1/chat/completions", json=chat(**{param: fits}, **asked))
        refused = await worker.http.post("/v1/chat/completions", json=chat(**{param: fits + 1}, **asked))
        assert len(worker.engine.requests) == 2
    assert whole.status_code == 200
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")
    assert error["message"] == (
        f"'{param}' is too large: {fits + 1}. This model's maximum context length is 200 tokens and your request has "
        f"{num_input} input tokens ({fits + 1} > 200 - {num_input})."
    )


async def test_the_limit_that_a_completion_has_by_default_is_cut_where_it_does_not_fit() -> None:
    async with front(tokens_of("a") * 500) as worker:
        body = (await worker.http.post("/v1/completions", json=completion(prompt=[5] * 190))).json()
    assert (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]) == ("length", 10)


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("chat/completions", b"{", 400, "invalid_json", None),
        ("chat/completions", {"model": MODEL}, 400, "missing_required_parameter", "messages"),
        ("chat/completions", chat(n=2), 400, "unsupported_parameter", "n"),
        ("chat/completions", chat() | {"model": "x"}, 404, "model_not_found", "model"),
        ("chat/completions", chat("a" * 400), 400, "context_length_exceeded", "messages"),
        ("completions", completion("b" * 400), 400, "context_length_exceeded", "prompt"),
        ("completions", completion([5] * 200), 400, "context_length_exceeded", "prompt"),
        ("completions", completion([10_000]), 400, "invalid_value", "prompt"),
        ("completions", completion(""), 400, "invalid_value", "prompt"),
        ("completions", completion(logit_bias={"99999": 1}), 400, "invalid_value", "logit_bias"),
        ("completions", completion(logit_bias={"9" * 4301: 1}), 400, "invalid_value", "logit_bias"),
        ("completions", completion("x" * with_hand_off(5000, MAX_MODEL_LEN)), 413, "request_too_large", None),
        ("completions", completion(kv_transfer_params=[]), 400, "invalid_type", "kv_transfer_params"),
    ],
)
async def test_bad_requests(path: str, body: Any, status: int, code: str, param: str | None) -> None:
    async with front(max_body_bytes=4800) as worker:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await worker.http.post(f"/v1/{path}", content=raw)
        assert worker.engine.requests == []
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] in {"invalid_request_error", "not_found_error"} and error["message"]


async def test_a_template_that_refuses_is_the_clients_error() -> None:
    async with front() as worker:
        body = {"model": MODEL, "messages": [{"role": "assistant", "content": "x"}]}
        response = await worker.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "must not be the assistant's" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ReadFailedError("P is gone"), 502, "kv_read_failed"),
        (EngineDeadError("rank 0 was killed"), 503, "engine_dead"),
        (PromptTooLongError("too long"), 400, "context_length_exceeded"),
        (EngineError("a new kind"), 500, "engine_error"),
    ],
)
async def test_an_error_before_the_first_token_is_a_status(
    error: EngineError, status: int, code: str, stream: bool
) -> None:
    async with front() as worker:
        worker.engine.error = error
        response = await worker.http.post("/v1/completions", json=completion(stream=stream))
    assert response.status_code == status
    assert response.json()["error"]["code"] == code


async def test_an_error_in_an_open_stream_is_one_event_and_the_end() -> None:
    async with front() as worker:
        worker.engine.error, worker.engine.error_after = EngineDeadError("rank 0 was killed"), 4
        response = await worker.http.post("/v1/chat/completions", json=chat(stream=True))
    assert response.status_code == 200
    chunks = events(response.text)
    assert chunks[-1] == {
        "error": {
            "message": "rank 0 was killed",
            "type": "service_unavailable_error",
            "param": None,
            "code": "engine_dead",
        },
        "request_id": response.headers["x-request-id"],
    }
    assert all("choices" in chunk for chunk in chunks[:-1]) and len(chunks) > 2


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("headers", [{}, {"x-baton-internal-token": "no"}, {"authorization": f"Bearer {SECRET}"}])
async def test_with_a_token_only_the_router_is_served(path: str, headers: dict[str, str]) -> None:
    async with front(token=SECRET) as worker:
        response = await worker.http.post(path, json={"model": MODEL}, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_internal_token"
        for page in ("/v1/models", "/health", "/load", "/metrics"):
            assert (await worker.http.get(page)).status_code == 200
        trusted = {"x-baton-internal-token": SECRET}
        assert (await worker.http.post(path, json={"model": MODEL}, headers=trusted)).status_code == 400


async def test_an_id_that_is_none_is_replaced() -> None:
    async with front(token=SECRET) as worker:
        trusted = {"x-request-id": "a,b", "x-baton-internal-token": SECRET}
        response = await worker.http.post("/v1/completions", json=completion(), headers=trusted)
        assert response.headers["x-request-id"] != "a,b"


async def test_the_pages() -> None:
    async with front() as worker:
        missing = await worker.http.get("/v1/models/other/name")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (await worker.http.get("/load")).json()["running"] == 0
        await worker.http.post("/v1/completions", json=completion(max_tokens=99))
        page = (await worker.http.get("/metrics")).text
        assert 'baton_worker_requests_total{finish_reason="stop"} 1.0' in page
        assert 'baton_worker_kv_blocks{state="free"} 10.0' in page
        assert "baton_worker_read_bytes_total 4096.0" in page
        assert 'baton_worker_lease_outcomes_total{outcome="done"} 1.0' in page
        nothing = await worker.http.get("/nothing")
        assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")
        wrong = await worker.http.get("/v1/completions")
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_health_tells_draining_and_dead_apart() -> None:
    async with front() as worker:
        await worker.internal.post("/internal/drain")
        for client in (worker.http, worker.internal):
            response = await client.get("/health")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        worker.health.fail("rank 0 was killed")
        assert (await worker.http.get("/health")).json()["error"]["code"] == "engine_dead"
