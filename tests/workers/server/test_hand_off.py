"""P's leg and D's leg over HTTP: together they must be one answer."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

import pytest

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.json_body import BodyLimits, parse_body
from baton_serve.workers.limits import limits_with_hand_off, with_hand_off
from tests.kits.worker.front import EOS, MAX_MODEL_LEN, SECRET, TEXT, Front, chat, completion, front, text_of, tokens_of
from tests.kits.worker.hand_off import ASK, GOOD

TRUST = {"x-baton-internal-token": SECRET}


async def prefill(worker: Front, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await worker.http.post(path, json={**body, **ASK})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def content(body: str) -> list[Any]:
    return [json.loads(line[6:]) for line in body.split("\n") if line and line != "data: [DONE]"]


async def test_p_answers_how_to_read_its_blocks() -> None:
    async with front() as worker:
        request_id = "ab" * 16
        response = await worker.http.post(
            "/v1/chat/completions", json={**chat(seed=11, min_tokens=4), **ASK}, headers={"x-request-id": request_id}
        )
        answer = response.json()
        params = answer["kv_transfer_params"]
        assert worker.leases.granted == ["lease-0"] == list(worker.engine.held)
        request = worker.engine.requests[0]
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "e" * 32,
        "remote_request_id": request_id,
        "remote_host": "127.0.0.1",
        "remote_port": worker.identity.internal_port,
        "remote_block_ids": [[7, 9]],
        "remote_num_tokens": len(request.prompt_token_ids),
        "tp_size": 1,
        "pp_size": 1,
        "dcp_size": 1,
        "transfer_mode": "pull",
        "lease_id": "lease-0",
        "promise": 2**64 - 1,
        "first_token": tokens_of(TEXT)[0],
        "first_logprobs": None,
        "prompt_token_ids": request.prompt_token_ids,
        "seed": 11,
        "created": answer["created"],
        "num_cached_tokens": 3,
        "output_token_ids": [],
        "adapter": "",
    }
    assert answer["choices"][0]["message"]["content"] == text_of(tokens_of(TEXT)[:1])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert request.hand_off and request.max_tokens == 1 and request.sampling.min_tokens == 4


async def test_a_first_token_that_ends_the_answer_leaves_no_lease() -> None:
    async with front([EOS]) as worker:
        answer = await prefill(worker, "/v1/completions", completion())
        assert "kv_transfer_params" not in answer
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert worker.leases.granted == []


async def test_a_stop_string_in_the_first_token_leaves_no_lease() -> None:
    async with front() as worker:
        stop = text_of(tokens_of(TEXT)[:1])
        answer = await prefill(worker, "/v1/completions", completion(stop=stop))
        assert "kv_transfer_params" not in answer
        assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["text"]) == ("stop", "")
        assert worker.leases.granted == [] and worker.engine.held == {}


@pytest.mark.parametrize(
    ("text", "wish"), [("\u4e2d", {}), ("ab", {"stop": ["abc"]}), ("ab", {"stop": "bx", "logprobs": 1})]
)
async def test_a_context_that_is_full_after_the_first_token_ends_with_all_of_its_text(
    text: str, wish: dict[str, Any]
) -> None:
    """No D comes that could show what P holds back: a part of a character, the beginning of a stop string."""
    async with front(tokens_of(text)) as worker:
        alone = completion([5] * (MAX_MODEL_LEN - 1), max_tokens=1, **wish)
        expected = (await worker.http.post("/v1/completions", json=alone)).json()
        answer = await prefill(worker, "/v1/completions", {**alone, "max_tokens": 9})
        assert "kv_transfer_params" not in answer
        assert worker.engine.requests[-1].hand_off and worker.leases.granted == []
    assert (answer["choices"], answer["usage"]) == (expected["choices"], expected["usage"])
    assert answer["choices"][0]["finish_reason"] == "length" and answer["choices"][0]["text"] != ""


@pytest.mark.parametrize("wish", [{}, {"stop": ["holds the"]}, {"logprobs": 2}, {"max_tokens": 4}])
async def test_d_streams_exactly_what_is_left(wish: dict[str, Any]) -> None:
    """The script begins with a character of several tokens, so P's first token shows nothing yet."""
    async with front([*tokens_of("\u4e2d" + TEXT), EOS]) as worker:
        alone = (await worker.http.post("/v1/completions", json=completion(seed=1, **wish))).json()
        first = await prefill(worker, "/v1/completions", completion(seed=1, **wish))
        body = completion(seed=1, stream=True, stream_options={"include_usage": True}, **wish)
        body["kv_transfer_params"] = first["kv_transfer_params"]
        response = await worker.http.post("/v1/completions", json=body)
    *chunks, usage = content(response.text)
    choices = [chunk["choices"][0] for chunk in chunks]
    expected = alone["choices"][0]
    assert first["choices"][0]["text"] + "".join(c["text"] for c in choices) == expected["text"]
    assert choices[-1]["finish_reason"] == expected["finish_reason"]
    assert usage["usage"] == alone["usage"]
    assert {chunk["created"] for chunk in chunks} == {first["created"]}
    if "logprobs" in wish:
        parts = [first["choices"][0]["logprobs"], *(c["logprobs"] for c in choices if c["logprobs"])]
        assert {key: [one for part in parts for one in part[key]] for key in parts[0]} == expected["logprobs"]


@pytest.mark.parametrize("wish", [{}, {"stop": "until"}, {"logprobs": True, "top_logprobs": 1}])
async def test_d_answers_the_whole_when_not_streamed(wish: dict[str, Any]) -> None:
    async with front() as worker:
        alone = (await worker.http.post("/v1/chat/completions", json=chat(**wish))).json()
        first = await prefill(worker, "/v1/chat/completions", chat(**wish))
        body = chat(kv_transfer_params=first["kv_transfer_params"], **wish)
        answer = (await worker.http.post("/v1/chat/completions", json=body)).json()
        remote = worker.engine.requests[-1]
    for field in ("choices", "usage", "model", "system_fingerprint"):
        assert answer[field] == alone[field]
    assert remote.sampling.seed == first["kv_transfer_params"]["seed"]
    assert remote.prompt_token_ids == first["kv_transfer_params"]["prompt_token_ids"]


async def test_a_continued_chat_stream_has_no_role_chunk() -> None:
    async with front() as worker:
        first = await prefill(worker, "/v1/chat/completions", chat())
        body = chat(stream=True, kv_transfer_params=first["kv_transfer_params"])
        chunks = content((await worker.http.post("/v1/chat/completions", json=body)).text)
        assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks)
        foreign = {**first["kv_transfer_params"], "first_token": -1}
        body = chat(stream=True, kv_transfer_params=foreign)
        chunks = content((await worker.http.post("/v1/chat/completions", json=body)).text)
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT


ENTRY = {"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": []}
LISTS = {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{"a": -1}], "text_offset": [0]}


@pytest.mark.parametrize(
    "fine", [None, {"content": [ENTRY], "refusal": None}, {"content": None}, LISTS, {key: [] for key in LISTS}]
)
async def test_first_logprobs_as_p_makes_them_are_taken(fine: Any) -> None:
    async with front() as worker:
        params = {**GOOD, "first_logprobs": fine}
        response = await worker.http.post("/v1/completions", json=completion(kv_transfer_params=params, logprobs=1))
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "change",
    [
        {"do_remote_decode": True},
        {"do_remote_prefill": "yes"},
        {"remote_port": 0},
        {"remote_port": -1},
        {"remote_port": 65536},
        {"remote_port": "80"},
        {"remote_host": "host/path?x"},
        {"remote_engine_id": ""},
        {"remote_engine_id": "a\nb"},
        {"lease_id": ""},
        {"lease_id": "x" * 129},
        {"lease_id": "a:b"},
        {"lease_id": "a.b"},
        {"remote_engine_id": "x" * 129},
        {"remote_request_id": "x" * 129},
        {"tp_size": 65},
        {"pp_size": 65},
        {"remote_block_ids": [[1], [2]]},
        {"remote_block_ids": []},
        {"remote_block_ids": [[-1]]},
        {"remote_block_ids": [[2**31]]},
        {"remote_block_ids": [[1, 1]]},
        {"remote_block_ids": [["a"]]},
        {"promise": 0},
        {"promise": -1},
        {"promise": 2**64},
        {"remote_num_tokens": 4},
        {"prompt_token_ids": [5, -6, 7]},
        {"first_token": -2},
        {"tp_size": 0},
        {"seed": 2**63},
        {"first_logprobs": 3},
        {"first_logprobs": {}},
        {"first_logprobs": {"content": 5}},
        {"first_logprobs": {"content": [5]}},
        {"first_logprobs": {"content": [ENTRY, ENTRY]}},
        {"first_logprobs": {"content": [{**ENTRY, "bytes": [256]}]}},
        {"first_logprobs": {"content": [{**ENTRY, "top_logprobs": [{}]}]}},
        {"first_logprobs": {"content": [{**ENTRY, "more": 1}]}},
        {"first_logprobs": {**LISTS, "tokens": 5}},
        {"first_logprobs": {**LISTS, "tokens": []}},
        {"first_logprobs": {**LISTS, "top_logprobs": [{"a": "b"}]}},
    ],
)
async def test_transfer_params_are_checked(change: dict[str, Any]) -> None:
    async with front() as worker:
        fine = await worker.http.post("/v1/completions", json=completion(kv_transfer_params=GOOD))
        assert fine.status_code == 200
        response = await worker.http.post("/v1/completions", json=completion(kv_transfer_params={**GOOD, **change}))
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("kv_params_invalid", "kv_transfer_params")


async def test_a_body_that_a_router_takes_fits_with_its_hand_off() -> None:
    """As much as the context holds, each token with a block of its own, on top of as much as the client may send."""
    num_tokens = MAX_MODEL_LEN - 2
    params = {
        **GOOD,
        "remote_block_ids": [[2**23 + i for i in range(num_tokens)]],
        "promise": 2**64 - 1,
        "remote_num_tokens": num_tokens,
        "prompt_token_ids": [200] * num_tokens,
    }
    limit = 2000
    body = completion(max_tokens=2)
    body["prompt"] = "x" * (limit - len(json.dumps(body)))
    async with front(max_body_bytes=limit) as worker:
        raw = json.dumps({**body, "kv_transfer_params": params}).encode()
        assert len(raw) > 2 * limit
        response = await worker.http.post("/v1/completions", content=raw)
        assert response.status_code == 200, response.text
        ten_digits = len(json.dumps({**params, "prompt_token_ids": [2**31] * num_tokens})) + limit
        assert ten_digits < with_hand_off(limit, MAX_MODEL_LEN)


def test_token_ids_that_a_router_takes_fit_with_their_hand_off() -> None:
    """Counted in values: all that a client may send, and the hand-off of as many tokens, each with a block."""
    client, num_tokens = BodyLimits(max_messages=1, max_values=2**14), 2**14
    ids = [7] * num_tokens
    hand_off = {"block_ids": ids, "prompt_token_ids": ids, "output_token_ids": [7]}
    raw = json.dumps({"prompt": ids[4:], "kv_transfer_params": hand_off}).encode()
    with pytest.raises(BadRequestError, match="16384 values"):
        parse_body(raw, client)
    parse_body(raw, limits_with_hand_off(client, num_tokens))


async def test_ids_of_other_kinds_of_engines_are_taken() -> None:
    async with front() as worker:
        params = {**GOOD, "remote_engine_id": "host:1.a", "remote_request_id": "cmpl-1:2.b"}
        response = await worker.http.post("/v1/completions", json=completion(kv_transfer_params=params))
        assert response.status_code == 200, response.text


async def test_a_prefill_is_not_streamed() -> None:
    async with front() as worker:
        response = await worker.http.post("/v1/completions", json={**completion(stream=True), **ASK})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "stream")


def raw_request(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return reader, writer


async def hang_up(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("body", [completion(), completion(stream=True), completion(**ASK)])
async def test_a_client_that_leaves_before_the_first_token_aborts(body: dict[str, Any], reset: bool) -> None:
    async with front() as worker:
        worker.engine.gate = asyncio.Semaphore(0)
        _, writer = await connect(worker.port)
        writer.write(raw_request(body))
        await worker.engine.until_running()
        await hang_up(writer, reset=reset)
        await worker.engine.until_idle()
        assert worker.engine.aborted == [worker.engine.requests[0].request_id]
        worker.engine.gate = None
        assert (await worker.http.post("/v1/completions", json=completion())).status_code == 200


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_an_open_stream_aborts(reset: bool) -> None:
    async with front() as worker:
        worker.engine.gate = asyncio.Semaphore(2)
        reader, writer = await connect(worker.port)
        writer.write(raw_request(completion(stream=True)))
        await reader.readuntil(b"data: ")
        await hang_up(writer, reset=reset)
        await worker.engine.until_idle()
        assert len(worker.engine.aborted) == 1


ID = "ab" * 16
NAMED = {"x-request-id": ID}


async def abort(worker: Front) -> bool:
    response = await worker.internal.post(f"/internal/abort/{ID}")
    assert response.status_code == 200
    aborted: bool = response.json()["aborted"]
    return aborted


async def test_a_prefill_that_is_asked_again_drops_the_lease_of_the_answer_before() -> None:
    async with front() as worker:
        for number in range(2):
            response = await worker.http.post("/v1/completions", json=completion(**ASK), headers=NAMED)
            assert response.json()["kv_transfer_params"]["lease_id"] == f"lease-{number}"
        assert worker.leases.dropped == ["lease-0"] and list(worker.engine.held) == ["lease-1"]


@pytest.mark.parametrize("decode", [False, True])
async def test_a_request_that_is_refused_leaves_the_answer_before_alone(decode: bool) -> None:
    """The older one has been answered, and may be read."""
    async with front() as worker:
        first = await worker.http.post("/v1/completions", json=completion(**ASK), headers=NAMED)
        await worker.internal.post("/internal/drain")
        more = {"kv_transfer_params": GOOD} if decode else ASK
        again = await worker.http.post("/v1/completions", json=completion(**more), headers=NAMED)
        assert (again.status_code, again.json()["error"]["code"]) == (503, "draining")
        assert list(worker.engine.held) == [first.json()["kv_transfer_params"]["lease_id"]]
        assert await abort(worker), "as before: whoever has not read it says so"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_that_is_asked_again_ends_the_one_before(stream: bool) -> None:
    """Nobody has hung up: the older one is told, in the stream that it has begun or by a status."""
    async with front() as worker:
        alone = (await worker.http.post("/v1/completions", json=completion(seed=1))).json()
        worker.engine.gate = asyncio.Semaphore(2)
        body = completion(seed=1, stream=stream)
        old = asyncio.create_task(worker.http.post("/v1/completions", json=body, headers=NAMED))
        await worker.engine.until_running()
        new = asyncio.create_task(worker.http.post("/v1/completions", json=completion(seed=1), headers=NAMED))
        ended = await old
        for _ in worker.engine.script:
            worker.engine.gate.release()
        assert '"code":"aborted"' in ended.text and ended.status_code in (499, 200 if stream else 499)
        assert (await new).json()["choices"] == alone["choices"]


async def test_a_decode_keeps_the_lease_that_it_is_about_to_read_and_no_other_of_its_request() -> None:
    async with front() as worker:
        worker.engine.lease("ll", ID)
        worker.engine.lease("unread", ID)
        worker.engine.lease("lease-x", "another")
        body = completion(kv_transfer_params=GOOD)
        assert (await worker.http.post("/v1/completions", json=body, headers=NAMED)).status_code == 200
        assert worker.engine.held == {"ll": ID, "lease-x": "another"}
        worker.engine.forget_leases()


async def test_an_abort_drops_the_lease_of_an_answer_that_nobody_has_read() -> None:
    """The connection is closed after half of the answer; only the abort tells P that the rest is not coming."""
    async with front() as worker:
        reader, writer = await connect(worker.port)
        named = b"\r\nx-request-id: %b\r\ncontent-length" % ID.encode()
        writer.write(raw_request(completion(**ASK)).replace(b"\r\ncontent-length", named))
        await reader.readuntil(b'"kv_transfer_params"')
        await hang_up(writer, reset=True)
        assert (await worker.http.get("/load")).json()["leases"] == 1
        assert await abort(worker)
        assert worker.leases.dropped == ["lease-0"] and worker.engine.held == {}
        assert not await abort(worker), "nothing is left"


async def test_an_abort_of_another_request_leaves_the_lease() -> None:
    async with front() as worker:
        await prefill(worker, "/v1/completions", completion())
        assert not await abort(worker)
        assert list(worker.engine.held) == ["lease-0"]
