"""A choice of several: its answer has the id of the whole and an index, and P keeps the blocks for the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_serve.core.protocol.choice import Choice, choice_in
from tests.kits.worker.front import EOS, Front, chat, completion, front, text_of, tokens_of

CHOICE = Choice("ab" * 16, 3, 1234)
HEADERS = dict([CHOICE.header(), ("x-request-id", "cd" * 16)])
PATHS = [("/v1/chat/completions", chat, "chatcmpl-"), ("/v1/completions", completion, "cmpl-")]


def ask(num_readers: Any) -> dict[str, Any]:
    return {"kv_transfer_params": {"do_remote_decode": True, "num_readers": num_readers}}


async def post(worker: Front, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await worker.http.post(path, json=body, headers=HEADERS)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_header_is_read_as_it_was_written() -> None:
    assert choice_in(CHOICE.header()[1]) == CHOICE
    assert choice_in(Choice("x").header()[1]) == Choice("x")


@pytest.mark.parametrize(
    "value", ["", "x", "x 1", "x 1 2 3", "x -1 0", "x 01 0", "x y 1", "a:b 1 1", "x 1 1\n", "é 1 1"]
)
def test_what_names_no_choice(value: str) -> None:
    assert choice_in(value) is None


@pytest.mark.parametrize(("path", "make", "prefix"), PATHS)
async def test_an_answer_names_the_whole_and_its_place(path: str, make: Any, prefix: str) -> None:
    async with front() as worker:
        answer = await post(worker, path, make(max_tokens=3))
        assert (answer["id"], answer["created"]) == (prefix + CHOICE.answer_id, 1234)
        assert [choice["index"] for choice in answer["choices"]] == [3]
        assert worker.engine.requests[0].request_id == "cd" * 16


@pytest.mark.parametrize(("path", "make", "prefix"), PATHS)
async def test_every_event_names_the_whole_and_its_place(path: str, make: Any, prefix: str) -> None:
    async with front() as worker:
        response = await worker.http.post(path, json=make(max_tokens=3, stream=True), headers=HEADERS)
        events = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
    assert len(events) > 3
    assert {(event["id"], event["created"]) for event in events} == {(prefix + CHOICE.answer_id, 1234)}
    assert {choice["index"] for event in events for choice in event["choices"]} == {3}


async def test_a_lease_for_several_readers() -> None:
    async with front() as worker:
        answer = await post(worker, "/v1/completions", {**completion(max_tokens=9), **ask(4)})
        assert answer["kv_transfer_params"]["lease_id"] == "lease-0"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert worker.engine.requests[0].num_readers == 4
        grant = worker.engine.leases.get("lease-0")
        assert grant is not None and (grant.num_readers, grant.have_read) == (4, set())


@pytest.mark.parametrize("script", [[EOS], tokens_of("the runner")], ids=["token", "string"])
async def test_the_others_may_read_after_an_answer_that_its_first_token_ended(script: list[int]) -> None:
    async with front(script) as worker:
        body = {**chat(max_tokens=9, stop=text_of(script[:1]) or None), **ask(2)}
        answer = await post(worker, "/v1/chat/completions", body)
        (choice,) = answer["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")
        assert answer["kv_transfer_params"]["lease_id"] == "lease-0"
        assert (worker.leases.granted, worker.leases.dropped) == (["lease-0"], [])
        grant = worker.engine.leases.get("lease-0")
        assert grant is not None and grant.have_read == {0}, "the first reader need not read"


async def test_a_request_that_comes_again_leaves_the_lease_to_the_others() -> None:
    async with front() as worker:
        for num_readers in (2, 1, 1):
            await post(worker, "/v1/completions", {**completion(max_tokens=9), **ask(num_readers)})
        assert list(worker.engine.held) == ["lease-0", "lease-2"]
        assert worker.leases.drop_request("cd" * 16)
        assert not worker.engine.held


@pytest.mark.parametrize("num_readers", [0, -1, 1025, "2", 1.5, None])
async def test_numbers_of_readers_that_are_none(num_readers: Any) -> None:
    async with front() as worker:
        response = await worker.http.post("/v1/completions", json={**completion(), **ask(num_readers)})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "kv_params_invalid")
        assert not worker.engine.requests


async def test_only_a_p_has_readers() -> None:
    async with front() as worker:
        body = {**completion(), "kv_transfer_params": {"num_readers": 2}}
        assert (await worker.http.post("/v1/completions", json=body)).status_code == 400
