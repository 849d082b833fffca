"""What a broken or hostile worker answers, as the router understands it. Pure: no connection."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import ApiError
from baton_serve.core.protocol.openai.passed_on import PassedOnCompletion
from baton_serve.router.engines.baton.answer import BatonAnswer
from baton_serve.router.request.client_request import CHAT_PATH, COMPLETIONS_PATH, ClientRequest
from baton_serve.router.upstream.worker_errors import MAX_TEXT_CHARS, error_event, from_worker
from tests.kits.fuzz.profile import JSON, as_json, fuzz, mutated, tried

PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 1,
    "remote_block_ids": [[1, 2]],
    "remote_num_tokens": 20,
    "lease_id": "l",
    "first_token": 7,
}
ANSWER = {
    "id": "x",
    "model": "m",
    "created": 5,
    "choices": [{"index": 0, "text": " t", "logprobs": None, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3},
    "kv_transfer_params": PARAMS,
}


def ask(*, chat: bool, stream: bool = True) -> ClientRequest:
    fields = PassedOnCompletion(model="m", stream=stream, stream_options={"include_usage": True}, max_tokens=3)
    return ClientRequest(fields, CHAT_PATH if chat else COMPLETIONS_PATH)


def understand(body: bytes) -> None:
    """Either it is refused, or everything that the router makes of it is JSON in UTF-8."""
    tried["a prefill worker's answer"] += 1
    try:
        answer = BatonAnswer(body, hand_off=True)
    except ValueError:
        return
    assert answer.summary.remote_num_tokens >= 0
    for chat in (True, False):
        answer.is_whole(ask(chat=chat))
        text = (answer.first_events(ask(chat=chat)) + answer.last_events(ask(chat=chat))).decode()
        for event in text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]:
            orjson.loads(event.removeprefix("data: "))
    (answer.kv_transfer_params or b"").decode()
    try:
        whole = answer.whole_body()
    except ApiError as error:
        assert error.status == 502
    else:
        assert "kv_transfer_params" not in orjson.loads(whole)


@fuzz(150)
@given(body=mutated(orjson.dumps(ANSWER)))
def test_a_prefill_answer_with_changed_bytes(body: bytes) -> None:
    understand(body)


@fuzz(100)
@given(where=st.sampled_from([*ANSWER, "new"]), value=JSON, inner=st.sampled_from([*PARAMS, "", "resume"]), other=JSON)
def test_a_prefill_answer_with_other_values(where: str, value: object, inner: str, other: object) -> None:
    understand(as_json({**ANSWER, "kv_transfer_params": {**PARAMS, inner: other}, where: value}))


@pytest.mark.parametrize(
    "piece",
    [
        b'"created":1' + b"0" * 30,
        b'"created":-1',
        b'"z":"\xff"',
        b'"usage":"\xff"',
        b'"z":"\\ud800\\u0041"',
        b'"z":' + b"[" * 500 + b"]" * 500,
        b'"z":' + b"[" * 100_000 + b"]" * 100_000,
        b'"kv_transfer_params":{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'"kv_transfer_params":{"remote_num_tokens":-5}',
        b'"kv_transfer_params":{"remote_num_tokens":1' + b"0" * 5000 + b"}",
        b'"kv_transfer_params":[]',
        b'"choices":[]',
        b'"choices":[{"logprobs":"\xff"}]',
        b'"choices":[{"message":{"content":5}}]',
    ],
)
def test_a_prefill_answer_with_one_nasty_piece(piece: bytes) -> None:
    understand(orjson.dumps(ANSWER)[:-1] + b"," + piece + b"}")


ERROR = orjson.dumps({"error": {"message": "no", "type": "server_error", "param": "p", "code": "c"}})


def check_told(error: ApiError) -> None:
    """It can be told: with a status that HTTP has, a short text, and a time to wait that is one."""
    assert 400 <= error.status < 600
    assert len(error.to_json()) < 30 * MAX_TEXT_CHARS
    assert error.retry_after_s is None or 0 <= round(error.retry_after_s) < 1e6
    error.to_sse().decode()


@fuzz(150)
@given(
    status=st.integers(0, 1000).filter(lambda status: status != 200),
    body=mutated(ERROR) | JSON.map(lambda error: as_json({"error": error})) | st.binary(max_size=50),
    retry_after=st.binary(max_size=8) | st.integers(0, 10**400).map(lambda number: str(number).encode()),
)
def test_a_refusal(status: int, body: bytes, retry_after: bytes) -> None:
    tried["a worker's refusal"] += 1
    check_told(from_worker(status, body, retry_after))


@fuzz(150)
@given(
    events=mutated(b"data: " + ERROR + b"\n\n") | JSON.map(lambda error: b"data: " + as_json({"error": error}) + b"\n")
)
def test_an_error_in_a_stream(events: bytes) -> None:
    tried["an error event"] += 1
    error = error_event(events)
    if error is not None:
        check_told(error)


@pytest.mark.parametrize("status", [100, 199, 304, 400, 503, 599, 600, 999])
@pytest.mark.parametrize(
    "body",
    [
        b'{"error":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"error":{"message":"m","code":' + b"[" * 1000 + b"]" * 1000 + b"}}",
        b'{"error":{"message":"' + b"m" * 1_000_000 + b'"}}',
        b'{"error":{"message":"m","type":"' + b"m" * 1_000_000 + b'"}}',
        b'{"error":{"message":null,"code":1e308,"param":true}}',
        b"[" * 100_000,
    ],
)
def test_a_refusal_that_is_hard_to_tell(status: int, body: bytes) -> None:
    check_told(from_worker(status, body, b"9" * 400))
    told = error_event(b"data: " + body + b"\n\n")
    assert told is None or told.status == 500
