"""What the router makes of the answer of a vLLM server that prefilled."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from baton_serve.core.protocol.openai.passed_on import PassedOnCompletion
from baton_serve.router.engines.legs import PrefillLeg
from baton_serve.router.request.client_request import CHAT_PATH, ClientRequest
from baton_serve.router.vllm.engine.answer import VllmAnswer

PARAMS: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "c50cedb5-57dd-46d7-b988-04927459cacc",
    "remote_request_id": "chatcmpl-abc123-81b8dcf7",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 2,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 175,
    "transfer_mode": "pull",
}


def answer(params: dict[str, Any] | None, finish: str = "length", **fields: Any) -> VllmAnswer:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": finish}
    body = {"id": "chatcmpl-x", "model": "m", "created": 5, "choices": [choice], "kv_transfer_params": params, **fields}
    return VllmAnswer(orjson.dumps(body), PrefillLeg(b"", hand_off=True, asked_ms=0))


def asked(max_tokens: int) -> ClientRequest:
    return ClientRequest(PassedOnCompletion(model="m", stream=True, max_tokens=max_tokens), CHAT_PATH)


def test_the_engine_is_where_the_answer_says() -> None:
    made = answer(PARAMS, prompt_token_ids=[1, 2])
    assert made.where is not None
    assert (made.where.engine_id, made.where.host, made.where.port) == (PARAMS["remote_engine_id"], "127.0.0.1", 5600)
    assert (made.where.ranks, made.prompt_token_ids) == ([(0, 0), (0, 1)], b"[1,2]")
    assert made.kv_transfer_params == orjson.dumps(PARAMS)


def test_a_completion_has_its_ids_in_the_choice() -> None:
    choice = {"index": 0, "text": "a", "finish_reason": "length", "prompt_token_ids": [1, 2]}
    assert answer(PARAMS, choices=[choice]).prompt_token_ids == b"[1,2]"


@pytest.mark.parametrize("ids", [None, 5, {}, "[1]"])
def test_malformed_ids_of_a_prompt_are_taken_for_none(ids: Any) -> None:
    assert answer(PARAMS, prompt_token_ids=ids).prompt_token_ids == b""


@pytest.mark.parametrize("finish", ["length", "stop", "tool_calls"])
def test_d_always_samples_the_answer(finish: str) -> None:
    made = answer(PARAMS, finish)
    assert not made.is_whole(asked(1))
    assert not made.has_first_token


def test_a_server_without_a_connector_keeps_nothing() -> None:
    assert answer(None).where is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_port": 0},
        {"remote_host": "no host"},
        {"tp_size": 10**9},
        {"remote_engine_id": ""},
        {"remote_port": "5600"},
        {"remote_request_id": "a:b"},
        {"remote_request_id": ""},
        {"lease_id": "a:b"},
        {"lease_id": "a", "remote_engine_id": "_e"},
    ],
)
def test_malformed_facts_of_an_engine_are_not_understood(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        answer({**PARAMS, **wrong})


def test_blocks_without_a_lease_are_refused() -> None:
    """As from a version of vLLM that does not name the request: D would read after any time."""
    params = {name: value for name, value in PARAMS.items() if name != "remote_request_id"}
    for told in (params, {}):
        with pytest.raises(ValueError, match="remote_request_id"):
            answer(told)
