"""Streams whose D fails: another one goes on, and the client sees no gap, nothing twice, and one answer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from baton_serve.core.net.client.errors import ConnectError
from baton_serve.core.process.log import FACTS
from baton_serve.router.request.attempts import CLEARED_AFTER_TOKENS
from baton_serve.router.request.failure_table import Failure
from baton_serve.router.steps.failures import failure_of
from tests.kits.router.cluster import Cluster, body_for, chat, events, eventually, spoken
from tests.kits.router.stub_workers import FIRST_TOKEN, Hang, Raw, Refuse, Reset, StreamThen, StubWorker, word

NUM_TOKENS = 8
WHOLE = "".join(map(word, range(NUM_TOKENS)))
CHAT = "/v1/chat/completions"
PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
BROKEN = {"error": {"message": "broken", "type": "server_error", "code": "oops"}}


def streamed_body(path: str, **more: Any) -> dict[str, Any]:
    return body_for(
        path, **{"max_tokens": NUM_TOKENS, "stream": True, "stream_options": {"include_usage": True}, **more}
    )


async def broken_off(
    cluster: Cluster, path: str, num_tokens: int, then: str, *all_d: StubWorker, behind: Sequence[Any] = ()
) -> str:
    """The stream whose D, whichever it is, breaks off after so many of its tokens."""
    acts = [StreamThen(num_tokens, then) for _ in all_d]
    for d, act in zip(all_d, acts, strict=True):
        d.script.append(act)
        d.bodies.clear()
    request = asyncio.create_task(cluster.post(streamed_body(path), path))
    await cluster.until_state("decoding")
    for d, act in zip(all_d, acts, strict=True):
        d.script = deque(behind)
        act.go.set()
    return (await request).text


async def replaced(cluster: Cluster, path: str, weights: str) -> tuple[str, StubWorker]:
    """The stream whose D dies when all there is else is of another layout, and the D of that."""
    d, _ = await cluster.fleet("decode", "prefill")
    act = StreamThen(2, "die")
    d.script.append(act)
    request = asyncio.create_task(cluster.post(streamed_body(path), path))
    await cluster.until_state("decoding")
    _, other = await cluster.fleet("prefill", "decode", digest="new", weights=weights)
    act.go.set()
    return (await request).text, other


@PATHS
async def test_another_layout_of_the_same_weights_goes_on(cluster: Cluster, path: str) -> None:
    text, other = await replaced(cluster, path, "w")
    check_whole(text, path)
    assert other.bodies
    cluster.check_idle()


@PATHS
async def test_other_weights_do_not_go_on(cluster: Cluster, path: str) -> None:
    """As while a model is replaced by another revision of the same name: its tokens would be others."""
    text, other = await replaced(cluster, path, "others")
    check_whole(text, path)
    assert not other.bodies
    cluster.check_idle()


async def broken_raw(cluster: Cluster, d: StubWorker, raw: Raw) -> str:
    """The stream of what D sends, which goes on once the client has D's first token."""
    d.script.append(raw)
    return await cluster.streamed(streamed_body(CHAT), raw, after=word(1))


def check_whole(text: str, path: str) -> None:
    """The stream is, event for event, one of a single worker."""
    seen = events(text)
    assert spoken(text) == WHOLE
    assert text.count('"role"') == ("chat" in path)
    assert not [line for line in text.splitlines() if line.startswith(":")], "the names of tokens are not for clients"
    assert len({(event["id"], event["created"], event["object"]) for event in seen[:-2]}) == 1
    assert [choice["finish_reason"] for event in seen[:-1] for choice in event["choices"]][-1] == "length"
    assert seen[-2]["usage"]["completion_tokens"] == NUM_TOKENS
    assert text.count("[DONE]") == 1 and seen[-1] == "[DONE]"


@PATHS
@pytest.mark.parametrize("then", ["die", "stop", "error"])
@pytest.mark.parametrize("num_tokens", [1, 4, 6, 99])
async def test_another_d_goes_on_with_a_stream_that_breaks(
    cluster: Cluster, path: str, then: str, num_tokens: int
) -> None:
    """With tokens in between, with one left, and when only the last words were missing."""
    p, d1, d2 = await cluster.fleet("prefill", "decode", "decode")
    text = await broken_off(cluster, path, num_tokens, then, d1, d2)
    check_whole(text, path)
    given = [FIRST_TOKEN + i for i in range(min(1 + num_tokens, NUM_TOKENS - 1))]
    resume = {"token_ids": given, "created": 5}
    asked = [body["kv_transfer_params"] for body in p.bodies]
    if len(given) + 1 < NUM_TOKENS:
        assert asked == [{"do_remote_decode": True}, {"do_remote_decode": True, "resume": resume}]
    else:
        assert len(asked) == 1, "the last token is not handed over"
        assert {"resume": resume} in [d.bodies[0]["kv_transfer_params"] for d in (d1, d2)]
    assert [len(d1.bodies), len(d2.bodies)] == [1, 1]
    assert len({body["seed"] for worker in (p, d1, d2) for body in worker.bodies}) == 1
    assert len({headers["x-request-id"] for worker in (p, d1, d2) for headers in worker.headers}) == 1
    assert cluster.metrics.resumed == {"resumed": 1, "failed": 0, "aborted": 0, "refused": 0}
    cluster.check_idle()


async def test_the_last_token_of_a_completion_without_a_limit_is_not_handed_over(cluster: Cluster) -> None:
    """It has 16, and 15 of them are out: D could not take the blocks of the last one."""
    p, d = await cluster.fleet("prefill", "decode")
    broken = StreamThen(14, "die")
    d.script.append(broken)
    asked = {"model": "m", "prompt": "hi", "stream": True}
    text = await cluster.streamed(asked, broken, after=word(14), path="/v1/completions")
    assert spoken(text) == "".join(map(word, range(16)))
    assert (len(p.bodies), len(d.bodies)) == (1, 2), "the last token is not handed over"
    assert len(d.bodies[1]["kv_transfer_params"]["resume"]["token_ids"]) == 15
    cluster.check_idle()


@PATHS
async def test_d_prefills_a_stream_that_breaks_when_no_p_is_left(cluster: Cluster, path: str) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    broken = StreamThen(2, "die")
    d.script.append(broken)
    request = asyncio.create_task(cluster.post(streamed_body(path), path))
    await cluster.until_state("decoding")
    await p.stop()
    broken.go.set()
    check_whole((await request).text, path)
    assert d.bodies[1]["kv_transfer_params"] == {
        "resume": {"token_ids": [FIRST_TOKEN + i for i in range(3)], "created": 5}
    }
    cluster.check_idle()


@PATHS
async def test_workers_that_do_both_go_on_for_each_other(cluster: Cluster, path: str) -> None:
    one, two = await cluster.fleet("both", "both")
    text = await broken_off(cluster, path, 3, "die", one, two)
    check_whole(text, path)
    resumes = [w.bodies[0].get("kv_transfer_params") for w in (one, two)]
    assert {"resume": {"token_ids": [FIRST_TOKEN + i for i in range(3)], "created": 5}} in resumes
    cluster.check_idle()


async def test_p_gives_the_last_token_itself(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    broken = StreamThen(3, "die")
    d.script.append(broken)
    request = asyncio.create_task(cluster.post(streamed_body(CHAT), CHAT))
    await cluster.until_state("decoding")
    p.finish_reason = "stop"
    broken.go.set()
    text = (await request).text
    assert spoken(text) == "".join(map(word, range(5)))
    assert text.count('"role"') == 1 and events(text)[-1] == "[DONE]"
    assert events(text)[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "what the first P found"
    assert cluster.metrics.resumed["resumed"] == 1
    cluster.check_idle()


async def test_a_stream_goes_on_although_d_fails_again_before_it_has(cluster: Cluster) -> None:
    """The blocks of the second prefill are read by another D, as those of the first would be."""
    p, d = await cluster.fleet("prefill", "decode")
    check_whole(await broken_off(cluster, CHAT, 2, "error", d, behind=[Refuse(500, BROKEN)]), CHAT)
    assert (len(p.bodies), len(d.bodies)) == (2, 3)
    cluster.check_idle()


async def test_a_stream_goes_on_although_p_fails_before_it_has(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    p.script.extend([None, Refuse(500, BROKEN)])
    check_whole(await broken_off(cluster, CHAT, 2, "error", d), CHAT)
    assert [len(body["kv_transfer_params"].get("resume", {}).get("token_ids", [])) for body in p.bodies] == [0, 3, 3]
    cluster.check_idle()


async def test_a_stream_is_aborted_when_its_client_leaves_while_it_is_moved(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    broken = StreamThen(2, "error")
    d.script.append(broken)
    p.script.extend([None, Hang()])
    writer = await cluster.open(streamed_body(CHAT))
    await cluster.until_state("decoding")
    broken.go.set()
    await eventually(lambda: len(p.bodies) == 2)
    writer.close()
    await cluster.until_state("prefilling", 0)
    assert cluster.metrics.resumed["aborted"] == 1
    cluster.check_idle()


async def test_an_error_about_the_request_is_not_for_another_d(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    error = b'data: {"error":{"message":"aborted by hand","type":"request_cancelled","code":499}}\n\n'
    raw = Raw([b':8\ndata: {"choices":[{"index":0,"delta":{"content":" t1"}}]}\n\n', None, error])
    text = await broken_raw(cluster, d, raw)
    assert spoken(text) == word(0) + word(1)
    assert events(text)[-1]["error"]["message"] == "aborted by hand"
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    assert cluster.metrics.resumed["refused"] == 0


async def test_tokens_that_came_with_the_error_are_shown(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    token = b':%d\ndata: {"choices":[{"index":0,"delta":{"content":" t%d"}}]}\n\n'
    error = b'data: {"error":{"message":"broke","type":"server_error","code":500}}\n\n'
    raw = Raw([token % (8, 1), None, token % (9, 2) + token % (10, 3) + error])
    assert spoken(await broken_raw(cluster, d, raw)) == WHOLE
    assert len(p.bodies[1]["kv_transfer_params"]["resume"]["token_ids"]) == 4
    cluster.check_idle()


@pytest.mark.settings(log_requests=True)
async def test_a_stream_that_went_on_is_in_the_log_and_the_metrics(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    with caplog.at_level(logging.INFO, "baton.router"):
        await broken_off(cluster, CHAT, 2, "error", d)
    (facts,) = [getattr(record, FACTS) for record in caplog.records if hasattr(record, FACTS)]
    assert (facts["state"], facts["resumed"], facts["retries"]) == ("done", 1, 0)
    assert 'baton_router_resumed_total{outcome="resumed"} 1.0' in (await cluster.client.get("/metrics")).text


@pytest.mark.settings(token_timeout_s=0.4)
class TestSilence:
    async def test_a_silent_d_is_left(self, cluster: Cluster) -> None:
        _, d1, d2 = await cluster.fleet("prefill", "decode", "decode")
        check_whole(await broken_off(cluster, CHAT, 2, "hang", d1, d2), CHAT)
        await eventually(lambda: d1.num_disconnects + d2.num_disconnects == 1)
        cluster.check_idle()

    @pytest.mark.parametrize("then", ["die", "hang"])
    async def test_a_d_that_dies_behind_its_last_word_is_not_replaced(self, cluster: Cluster, then: str) -> None:
        """The client has the whole answer: nothing of it may come again."""
        p, d = await cluster.fleet("prefill", "decode")
        token = b':8\ndata: {"choices":[{"index":0,"delta":{"content":" t1"}}]}\n\n'
        last = b':end\ndata: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        text = await broken_raw(cluster, d, Raw([token, None, last], then=then))
        assert (spoken(text), text.count("[DONE]")) == (word(0) + word(1), 1)
        assert (len(p.bodies), len(d.bodies)) == (1, 1)
        assert cluster.metrics.resumed["resumed"] == 0
        cluster.check_idle()


@pytest.mark.settings(log_requests=True, pick_decode="round_robin")
class TestPoison:
    """A request that kills whoever gets it."""

    MAX_TOKENS = 60

    @pytest.mark.parametrize("role", ["prefill", "decode", "both"])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_request_that_kills_workers_kills_two_and_no_more(
        self, cluster: Cluster, role: str, stream: bool
    ) -> None:
        if role != "both":
            await cluster.add("decode" if role == "prefill" else "prefill")
        victims = [await cluster.add(role) for _ in range(5)]
        for victim in victims:
            victim.script.append(Reset())
        response = await cluster.post(streamed_body(CHAT, stream=stream) | ({} if stream else {"stream_options": None}))
        error = events(response.text)[-1] if response.status_code == 200 else response.json()
        assert error["error"]["code"] == "worker_deaths"
        assert sum(len(victim.bodies) for victim in victims) == 2
        assert cluster.metrics.outcomes["failed", "worker_deaths"] == 1
        cluster.check_idle()

    async def test_a_stream_that_kills_workers_kills_two_and_no_more(self, cluster: Cluster) -> None:
        await cluster.add("prefill")
        victims = [await cluster.add("decode") for _ in range(4)]
        for victim in victims:
            act = StreamThen(2, "die")
            act.go.set()
            victim.script.append(act)
        text = (await cluster.post(streamed_body(CHAT))).text
        assert spoken(text) == "".join(map(word, range(6))), "what each of two prefills and two D gave"
        assert events(text)[-1]["error"]["code"] == "worker_deaths"
        assert sum(len(victim.bodies) for victim in victims) == 2
        assert cluster.metrics.resumed == {"resumed": 1, "failed": 0, "aborted": 0, "refused": 1}
        cluster.check_idle()

    @pytest.mark.parametrize("num_tokens", [0, 1, CLEARED_AFTER_TOKENS - 2])
    async def test_a_death_close_to_where_the_first_worker_died_ends_the_request(
        self, cluster: Cluster, num_tokens: int
    ) -> None:
        """The first had computed tokens that nobody has seen. With P's in between it is one more."""
        text, victims = await self.through(cluster, 20, num_tokens, 20)
        assert events(text)[-1]["error"]["code"] == "worker_deaths"
        assert sum(len(victim.bodies) for victim in victims) == 2
        cluster.check_idle()

    async def test_a_request_that_gets_further_with_another_d_did_not_kill_the_first(self, cluster: Cluster) -> None:
        text, victims = await self.through(cluster, 5, CLEARED_AFTER_TOKENS - 1, 99)
        assert (spoken(text), events(text)[-1]) == ("".join(map(word, range(self.MAX_TOKENS))), "[DONE]")
        assert [len(victim.bodies) for victim in victims] == [1, 1, 1]
        cluster.check_idle()

    async def test_a_request_that_kills_each_worker_after_a_while_is_given_up_as_well(self, cluster: Cluster) -> None:
        text, victims = await self.through(cluster, *[CLEARED_AFTER_TOKENS] * 6)
        assert events(text)[-1]["error"]["code"] == "upstream_error"
        assert sum(len(victim.bodies) for victim in victims) == 1 + cluster.settings.max_resumes
        cluster.check_idle()

    async def through(self, cluster: Cluster, *num_tokens: int) -> tuple[str, list[StubWorker]]:
        """A stream through D after D, of which each dies after so many tokens if there are as many."""
        await cluster.add("prefill")
        victims = [await cluster.add("decode") for _ in num_tokens]
        for victim, num in zip(victims, num_tokens, strict=True):
            act = StreamThen(num, "die")
            act.go.set()
            victim.script += [act] * (num < self.MAX_TOKENS)
        return (await cluster.post(streamed_body(CHAT) | {"max_tokens": self.MAX_TOKENS})).text, victims

    async def test_a_worker_that_breaks_twice_has_died_once(self, cluster: Cluster) -> None:
        """The only one there is: it is asked again before anybody can know that it is about to be gone."""
        _, only = await cluster.fleet("prefill", "decode")
        only.script += [Reset(), Reset()]
        assert (await cluster.post(chat())).status_code == 200
        assert len(only.bodies) == 3
        cluster.check_idle()

    async def test_an_engine_that_died_counts_as_a_death(self, cluster: Cluster) -> None:
        _, *victims = await cluster.fleet("prefill", "decode", "decode", "decode")
        for victim in victims:
            victim.script.append(Refuse(503, {"error": {"message": "dead", "code": "engine_dead"}}))
        assert (await cluster.post(chat())).json()["error"]["code"] == "worker_deaths"

    async def test_a_kept_connection_that_leads_nowhere_counts_as_a_death(self, cluster: Cluster) -> None:
        """The worker took the request on a connection it had, and died; that it now refuses says nothing else."""
        _, d = await cluster.fleet("prefill", "decode")
        await cluster.post(chat())
        upstream = cluster.upstream
        d.hangs()
        call = asyncio.create_task(upstream.request("POST", d.url, CHAT, (), b'{"stream":true}', 5))
        await eventually(lambda: len(d.bodies) == 2)
        await d.stop()
        with pytest.raises(ConnectError) as caught:
            await call
        assert failure_of(caught.value) is Failure.DIED
        with pytest.raises(ConnectError) as caught:
            await upstream.request("POST", d.url, CHAT, (), b"{}", 5)
        assert failure_of(caught.value) is not Failure.DIED


@pytest.mark.settings(retry_budget_fraction=0.0, retry_budget_floor_per_s=0.1)
async def test_as_many_streams_go_on_as_the_budget_allows(cluster: Cluster) -> None:
    _, d1, d2 = await cluster.fleet("prefill", "decode", "decode")
    check_whole(await broken_off(cluster, CHAT, 2, "die", d1, d2), CHAT)
    text = await broken_off(cluster, CHAT, 2, "die", d1, d2)
    assert events(text)[-1]["error"]["code"] == "upstream_error"
    assert cluster.metrics.num_over_budget == 1
    assert "baton_router_retries_over_budget_total 1.0" in (await cluster.client.get("/metrics")).text
    cluster.check_idle()


@pytest.mark.settings(max_resumes=0)
async def test_no_stream_goes_on_if_so_set(cluster: Cluster) -> None:
    _, d1, d2 = await cluster.fleet("prefill", "decode", "decode")
    text = await broken_off(cluster, CHAT, 2, "die", d1, d2)
    assert spoken(text) == "".join(map(word, range(3)))
    assert events(text)[-1]["error"]["code"] == "upstream_error"
