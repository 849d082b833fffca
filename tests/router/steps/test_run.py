"""From P to D: what the client gets, and what the workers are sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.router.cluster import Cluster, body_for, chat, events, eventually, spoken
from tests.kits.router.stub_workers import FIRST_TOKEN, word

PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
WHOLE = "".join(map(word, range(4)))


@pytest.mark.parametrize("ours", [True, False])
@PATHS
async def test_an_unstreamed_answer_comes_from_p_and_d(cluster: Cluster, path: str, ours: bool) -> None:
    p, d = await cluster.fleet("prefill", "decode", ours=ours)
    response = await cluster.post(body_for(path), path)
    assert response.status_code == 200
    choice = response.json()["choices"][0]
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == WHOLE
    assert response.json()["usage"]["completion_tokens"] == 4
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    cluster.check_idle()


@pytest.mark.parametrize("ours", [True, False])
@PATHS
async def test_a_streamed_answer_comes_from_p_and_d(cluster: Cluster, path: str, ours: bool) -> None:
    await cluster.fleet("prefill", "decode", ours=ours)
    body = body_for(path, stream=True, stream_options={"include_usage": True})
    response = await cluster.post(body, path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert spoken(response.text) == WHOLE
    seen = events(response.text)
    assert seen[-1] == "[DONE]"
    assert seen[-2]["usage"]["completion_tokens"] == 4
    if "chat" in path:
        assert [e["choices"][0]["delta"].get("role") for e in seen if e != "[DONE]" and e["choices"]].count(
            "assistant"
        ) == 1
        assert seen[0]["object"] == "chat.completion.chunk"
    cluster.check_idle()


async def test_the_first_token_does_not_wait_for_d(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    hang = d.hangs()
    async with cluster.client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
        lines = response.aiter_text()
        first = await anext(lines)
        assert spoken(first) == word(0)
        await cluster.until_state("reading")
        hang.release.set()
        rest = "".join([part async for part in lines])
    assert spoken(first + rest) == WHOLE


async def test_a_first_token_without_text_waits_for_content(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    p.first_text = ""
    hang = d.hangs()
    await cluster.open(chat(stream=True))
    await cluster.until_state("reading")
    (request,) = cluster.active
    assert not request.reply.started
    hang.release.set()
    raw = await cluster._readers[0].readuntil(b"data: [DONE]\n\n")
    assert raw.count(b'"role":"assistant"') == 1


async def test_p_and_d_are_each_sent_the_body_for_their_leg(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    body = chat(stream=True, max_completion_tokens=5, min_tokens=2, stop=["x"], user="u")
    body["kv_transfer_params"] = {"remote_host": "evil", "do_remote_prefill": True}
    body["n"] = 1
    await cluster.post(body)
    (to_p,), (to_d,) = p.bodies, d.bodies
    assert to_p["kv_transfer_params"] == {"do_remote_decode": True}
    assert (to_p["stream"], to_p["max_tokens"], to_p["max_completion_tokens"]) == (False, 4, 5), (
        "it refuses what cannot fit"
    )
    assert "stream_options" not in to_p
    assert to_p["min_tokens"] == 2, "our own workers need it for bans and stop strings"
    assert (to_d["stream"], to_d["max_tokens"], to_d["max_completion_tokens"], to_d["min_tokens"]) == (True, 4, 5, 2)
    assert to_d["kv_transfer_params"]["promise"] == 2**64 - 1
    assert to_d["kv_transfer_params"]["first_token"] == FIRST_TOKEN
    assert to_p["seed"] == to_d["seed"], "whoever continues draws the same noise"
    assert p.headers[0]["x-request-id"] == d.headers[0]["x-request-id"]
    assert int(p.headers[0]["x-request-id"], 16)


async def test_other_engines_get_no_more_min_tokens_than_max_tokens(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode", ours=False)
    await cluster.post(chat(min_tokens=3))
    assert p.bodies[0]["min_tokens"] == 1
    assert d.bodies[0]["min_tokens"] == 3


@pytest.mark.parametrize("given", [{"seed": 5}, {"temperature": 0}])
async def test_a_seed_is_only_added_where_it_matters(cluster: Cluster, given: dict[str, Any]) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    await cluster.post(chat(**given))
    assert p.bodies[0].get("seed") == given.get("seed")


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("stream", [False, True])
@PATHS
async def test_an_answer_that_is_finished_by_its_first_token_needs_no_d(
    cluster: Cluster, path: str, stream: bool, finish_reason: str
) -> None:
    """By the token itself, or because the context is full with it: P then keeps no blocks."""
    p, d = await cluster.fleet("prefill", "decode")
    p.finish_reason, p.is_full = finish_reason, True
    body = body_for(path, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    response = await cluster.post(body, path)
    assert d.bodies == []
    if stream:
        seen = events(response.text)
        assert spoken(response.text) == word(0)
        assert seen[-3]["choices"][0]["finish_reason"] == finish_reason
        assert seen[-2]["usage"]["completion_tokens"] == 1
        assert seen[-1] == "[DONE]"
    else:
        assert response.json()["choices"][0]["finish_reason"] == finish_reason
        assert "kv_transfer_params" not in response.json()
    cluster.check_idle()


async def test_length_from_engines_we_do_not_know_is_not_the_end(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode", ours=False)
    p.is_full = True
    assert (await cluster.post(chat())).json()["choices"][0]["message"]["content"] == WHOLE
    assert (len(p.bodies), len(d.bodies)) == (1, 1)


async def test_one_token_needs_no_d_and_no_blocks(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    response = await cluster.post(chat(max_tokens=1))
    assert response.json()["usage"]["completion_tokens"] == 1
    assert "kv_transfer_params" not in p.bodies[0]
    assert (d.bodies, cluster.leases.released, p.num_leases) == ([], [], 0)
    assert cluster.metrics.outcomes == {("done", ""): 1}
    cluster.check_idle()


async def test_one_token_from_engines_we_do_not_know_takes_both_legs(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode", ours=False)
    response = await cluster.post(chat(max_tokens=1, stream=True))
    assert spoken(response.text) == word(0)
    assert (len(p.bodies), len(d.bodies)) == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_for_both_gets_a_request_in_one_leg(cluster: Cluster, stream: bool) -> None:
    both = await cluster.add("both")
    response = await cluster.post(chat(stream=stream))
    assert (spoken(response.text) if stream else response.json()["choices"][0]["message"]["content"]) == WHOLE
    assert "kv_transfer_params" not in both.bodies[0]
    cluster.check_idle()


async def test_the_lease_is_kept_until_d_answers(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    hang = d.hangs()
    await cluster.open(chat(stream=True))
    await cluster.until_state("reading")
    assert list(cluster.leases.tracked) == ["leasep01"]
    hang.release.set()
    await eventually(lambda: not cluster.active)
    assert cluster.leases.untracked == ["leasep01"]
    assert cluster.leases.released == []


@pytest.mark.settings(client_priority="trusted")
async def test_held_requests_go_by_priority_then_age(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    cluster.limits["d1"] = 1
    cluster.workers[1].engine_id = "enginenew"
    cluster.announce()
    hang = d.hangs()
    await cluster.open(chat(user="running"))
    await cluster.until_state("reading")
    for i, (user, priority) in enumerate([("low", 1), ("old", 0), ("young", 0), ("high", -9)], 1):
        await cluster.open(chat(user=user, priority=priority))
        await cluster.until_state("held", i)
    hang.release.set()
    await eventually(lambda: not cluster.active)
    assert [body["user"] for body in d.bodies] == ["running", "high", "old", "young", "low"]
    cluster.check_idle()
