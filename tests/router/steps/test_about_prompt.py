"""Requests that are about their prompts: one worker that prefills does each of them alone."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

import pytest

from tests.kits.router.cluster import Cluster, chat, events, eventually, spoken
from tests.kits.router.stub_workers import FIRST_TOKEN, Hang, Raw, Refuse, Reset, StreamThen, StubWorker, word

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
NUM_TOKENS = 6
PROMPT = "the prompt and more"
WORDS = "".join(map(word, range(NUM_TOKENS)))
pytestmark = pytest.mark.settings(first_byte_timeout_s=0.2, max_answer_bytes=3000)


def echo(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi", "echo": True, "max_tokens": NUM_TOKENS, **more}


def check_stream(text: str) -> None:
    """The prompt and the tokens, each once; the lines between router and worker are not shown."""
    assert spoken(text) == PROMPT + WORDS
    assert not [line for line in text.splitlines() if line.startswith(":")]
    assert text.count("[DONE]") == 1 and "error" not in text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, echo()),
        (TEXT, echo(logprobs=1, max_tokens=1)),
        (TEXT, echo(logprobs=1, max_tokens=0)),
        (TEXT, {"model": "m", "prompt": [1, 2, 3], "prompt_logprobs": 1}),
        (TEXT, {"model": "m", "prompt": [1, 2, 3], "prompt_logprobs": 1, "max_tokens": 0}),
        (CHAT, chat(prompt_logprobs=0)),
        (TEXT, echo(stream=True)),
    ],
)
async def test_a_worker_that_prefills_serves_a_request_about_its_prompt_alone(
    cluster: Cluster, path: str, body: dict[str, Any]
) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    answer = await cluster.post(body, path)
    assert answer.status_code == 200
    (asked,) = p.bodies
    assert {name: asked[name] for name in body} == body
    assert "kv_transfer_params" not in asked and d.bodies == []
    (ended,) = cluster.ended()
    assert (ended.outcome, ended.decode_worker, ended.prefill_worker) == ("done", "p0", None)
    assert cluster.store.held(p.engine_id) == []
    cluster.check_idle()


@pytest.mark.parametrize("body", [echo(stream=True), echo(stream=True, logprobs=1, max_tokens=0)])
async def test_a_streamed_echo_begins_with_the_prompt(cluster: Cluster, body: dict[str, Any]) -> None:
    await cluster.fleet("prefill", "decode")
    text = (await cluster.post(body, TEXT)).text
    assert [event["choices"][0]["text"] for event in events(text)[:2]] == ["the prompt", " and more"]
    assert spoken(text) == PROMPT + (WORDS if body["max_tokens"] else "")
    assert events(text)[-2]["choices"][0]["finish_reason"] == "length"
    cluster.check_idle()


async def test_workers_that_do_both_serve_requests_about_prompts_too(cluster: Cluster) -> None:
    (both,) = await cluster.fleet("both")
    check_stream((await cluster.post(echo(stream=True), TEXT)).text)
    assert len(both.bodies) == 1


def meets(act: Any, *workers: StubWorker) -> None:
    """Whichever of them is asked first meets the act, and the others do as usual."""
    script = deque([act])
    for worker in workers:
        worker.script = script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("act", [Reset(), Refuse(503, {"error": {"message": "x", "code": "engine_dead"}})])
async def test_another_p_serves_a_request_about_its_prompt_when_one_dies(
    cluster: Cluster, act: Any, stream: bool
) -> None:
    one, two, d = await cluster.fleet("prefill", "prefill", "decode")
    meets(act, one, two)
    answer = await cluster.post(echo(stream=stream), TEXT)
    assert answer.status_code == 200
    assert (len(one.bodies), len(two.bodies), len(d.bodies)) == (1, 1, 0)
    cluster.check_idle()


async def test_a_d_serves_a_request_about_its_prompt_when_no_p_is_left(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    await p.stop()
    check_stream((await cluster.post(echo(stream=True), TEXT)).text)
    assert len(d.bodies) == 1
    cluster.check_idle()


async def broken_off(cluster: Cluster, body: dict[str, Any], act: StreamThen, *workers: StubWorker) -> str:
    """The stream whose first worker breaks off."""
    meets(act, *workers)
    request = asyncio.create_task(cluster.post(body, TEXT))
    await cluster.until_state("decoding")
    act.go.set()
    return (await request).text


@pytest.mark.parametrize("num_tokens", [1, 4, 99])
@pytest.mark.parametrize("then", ["die", "stop", "error"])
async def test_another_p_goes_on_without_the_prompt(cluster: Cluster, then: str, num_tokens: int) -> None:
    one, two, d = await cluster.fleet("prefill", "prefill", "decode")
    check_stream(await broken_off(cluster, echo(stream=True), StreamThen(num_tokens, then), one, two))
    assert (len(one.bodies), len(two.bodies), len(d.bodies)) == (1, 1, 0)
    (again,) = [body for p in (one, two) for body in p.bodies if "kv_transfer_params" in body]
    given = list(range(FIRST_TOKEN, FIRST_TOKEN + min(num_tokens, NUM_TOKENS - 1)))
    assert again["kv_transfer_params"] == {"resume": {"token_ids": given, "created": 5}}
    assert again["echo"] is True, "its offsets begin after the prompt"
    cluster.check_idle()


async def test_a_stream_of_nothing_but_its_prompt_goes_on_with_its_end(cluster: Cluster) -> None:
    one, two, _ = await cluster.fleet("prefill", "prefill", "decode")
    body = echo(stream=True, max_tokens=0)
    text = await broken_off(cluster, body, StreamThen(99, "die"), one, two)
    assert spoken(text) == PROMPT and text.count("[DONE]") == 1
    assert sorted("kv_transfer_params" in p.bodies[0] for p in (one, two)) == [False, True]
    cluster.check_idle()


def named(ids: str, text: str) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    chunk = {"id": "cmpl-x", "object": "text_completion", "created": 5, "model": "m", "choices": [choice]}
    return f":{ids}\ndata: {json.dumps(chunk)}\n\n".encode()


@pytest.mark.parametrize("then", ["die", "stop"])
async def test_a_client_is_sent_nothing_before_all_of_the_prompt_has_come(cluster: Cluster, then: str) -> None:
    one, two, _ = await cluster.fleet("prefill", "prefill", "decode")
    meets(Raw([named("", "the prompt")], then), one, two)
    check_stream((await cluster.post(echo(stream=True), TEXT)).text)
    assert [len(one.bodies), len(two.bodies)] == [1, 1]
    assert not any("kv_transfer_params" in worker.bodies[0] for worker in (one, two)), "it begins anew"
    cluster.check_idle()


async def test_a_comment_shows_that_the_prompt_is_complete(cluster: Cluster) -> None:
    """Tokens without a text are not shown; the worker sends comments meanwhile."""
    (p,) = await cluster.fleet("both")
    act = Raw([named("", "the prompt") + b":\n\n", None, named("7,8", " t"), b":end\n", b"data: [DONE]\n\n"])
    p.script.append(act)
    text = await cluster.streamed(echo(stream=True), act, after="the prompt", path=TEXT)
    assert spoken(text) == "the prompt t"


async def test_a_stream_that_names_no_tokens_ends_with_an_error(cluster: Cluster) -> None:
    plain = await cluster.add("both", ours=False)
    text = await broken_off(cluster, echo(stream=True), StreamThen(2, "die"), plain)
    assert spoken(text) == PROMPT + word(0) + word(1)
    assert events(text)[-1]["error"]["code"] == "upstream_error"
    assert len(plain.bodies) == 1


async def test_a_prompt_that_is_larger_than_any_answer_is_a_clear_error(cluster: Cluster) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(Raw([named("", "x" * 1000)] * 4, "hang"))
    answer = await cluster.post(echo(stream=True), TEXT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "answer_too_large")
    assert "max_answer_bytes" in answer.json()["error"]["message"]
    p.echoed = ["x" * 3000]
    answer = await cluster.post(echo(), TEXT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "answer_too_large")
    assert len(p.bodies) == 2, "another worker's answer would be as large"
    cluster.check_idle()


async def test_a_stream_may_take_as_long_as_a_prefill(cluster: Cluster) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    hang = p.hangs()
    request = asyncio.create_task(cluster.post(echo(stream=True), TEXT))
    await cluster.until_state("reading")
    await asyncio.sleep(0.4)  # longer than a D may take to begin a stream
    hang.release.set()
    check_stream((await request).text)
    assert len(p.bodies) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_worker(cluster: Cluster, stream: bool) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(Hang())
    writer = await cluster.open(echo(stream=stream), TEXT)
    await eventually(lambda: len(p.bodies) == 1)
    writer.close()
    await eventually(lambda: p.num_disconnects == 1)
    await eventually(cluster.is_idle)
    assert cluster.ended()[0].outcome == "aborted"


async def test_a_request_about_its_prompt_waits_its_turn_among_the_prefills(cluster: Cluster) -> None:
    p = await cluster.add("prefill", limit=1)
    await cluster.add("decode")
    places = cluster.pool.get("p0").usage.room
    hangs = [Hang() for _ in range(places)]
    p.script.extend(hangs)
    running = [asyncio.create_task(cluster.post(chat())) for _ in range(places)]
    await cluster.until_state("prefilling", places)
    waiting = asyncio.create_task(cluster.post(echo(), TEXT))
    await eventually(lambda: len(cluster.queues.prefill) == 1)
    behind = asyncio.create_task(cluster.post(chat()))
    await eventually(lambda: len(cluster.queues.prefill) == 2)
    hangs[0].release.set()
    answers = [waiting, behind, *running]
    for hang in hangs:
        hang.release.set()
    assert {(await answer).status_code for answer in answers} == {200}
    assert [("echo" in body) for body in p.bodies] == [False] * places + [True, False]
    cluster.check_idle()


async def test_several_answers_are_as_many_requests(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    body = echo(prompt=["one", "two"], n=2, logprobs=1)
    answer = (await cluster.post(body, TEXT)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["text"].startswith(PROMPT) for choice in answer["choices"])
    assert [asked["prompt"] for asked in p.bodies] == ["one", "one", "two", "two"] and d.bodies == []
    assert all("kv_transfer_params" not in asked for asked in p.bodies), "each computes the prompt, which nobody keeps"
    cluster.check_idle()


async def test_requests_about_prompts_with_one_beginning_are_spread(cluster: Cluster) -> None:
    """Unlike prompts that are handed over, which go where the beginning is cached."""
    one, two, _ = await cluster.fleet("prefill", "prefill", "decode")
    beginning = "as before " * 100
    for _ in range(4):
        assert (await cluster.post(echo(prompt=beginning, max_tokens=0), TEXT)).status_code == 200
    assert (len(one.bodies), len(two.bodies)) == (2, 2)
