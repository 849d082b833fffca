"""Requests that skip P: short ones, and those of which a D has most."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton_serve.router.placement import Prefilled, SkipPrefill, SkipPrefillRule
from baton_serve.router.placement.policies.affinity import Affinity
from baton_serve.router.settings import RouterSettings
from tests.kits.router.cluster import Cluster, body_for, chat, events, spoken
from tests.kits.router.placement import prompt, with_blocks, worker
from tests.kits.router.stub_workers import FIRST_TOKEN, Hang, Refuse, StreamThen, StubWorker, word

WHOLE = "".join(map(word, range(4)))
KIB = b"x" * 1024


def test_a_rule_that_is_off_looks_at_nothing() -> None:
    rule = SkipPrefillRule(0, 9, None)
    assert rule.is_off and rule.workers_for(prompt(b""), [worker("a")]) is None


@pytest.mark.parametrize(("num_tokens", "skips"), [(99, True), (100, False)])
def test_a_prompt_is_short_if_it_is_below_the_setting(num_tokens: int, skips: bool) -> None:
    a = worker("a")
    found = SkipPrefillRule(100, 0, None).workers_for(prompt(b"x" * 4 * num_tokens), [a])
    assert found == ((SkipPrefill.SHORT, [a]) if skips else None)


def test_only_a_worker_that_has_room_is_sent_a_short_prompt() -> None:
    full, stuck, good = worker("a", in_flight=1, limit=1), with_blocks("b", free=1), with_blocks("c", free=9)
    rule = SkipPrefillRule(100, 0, None)
    about = prompt(b"x" * 4 * 40)
    assert rule.workers_for(about, [full, stuck, good]) == (SkipPrefill.SHORT, [good])
    assert rule.workers_for(about, [full, stuck]) is None


def test_a_prompt_is_cached_if_a_worker_lacks_little_of_it() -> None:
    policy, a, b = Affinity([]), worker("a"), worker("b")
    rule = SkipPrefillRule(0, 129, policy)
    assert rule.workers_for(prompt(KIB), [a, b]) is None
    policy.pick([a], Prefilled(prompt(KIB), None, 0))
    assert rule.workers_for(prompt(KIB + b"y" * 512), [a, b]) == (SkipPrefill.CACHED, [a])
    assert rule.workers_for(prompt(KIB + b"y" * 516), [a, b]) is None, "129 tokens are too many"
    assert rule.workers_for(prompt(b"short"), [a, b]) is None, "it lacks little, but has nothing of it"


def test_a_busy_worker_is_not_sent_a_prompt_that_it_has() -> None:
    policy, a, b = Affinity([]), worker("a", in_flight=26, limit=100), worker("b")
    policy.pick([a], Prefilled(prompt(KIB), None, 0))
    assert SkipPrefillRule(0, 129, policy).workers_for(prompt(KIB), [a, b]) is None


def test_skipping_p_for_cached_prompts_needs_the_affinity_policy() -> None:
    with pytest.raises(ValueError, match="pick_decode=affinity"):
        RouterSettings.model_validate({"min_uncached_tokens": 5, "pick_decode": "least_loaded"})


async def three(cluster: Cluster) -> list[StubWorker]:
    made = await cluster.fleet("prefill", "decode", "decode")
    for one in cluster.pool:
        one.usage.num_blocks = 1000
    return made


def saying(path: str, text: str, **kwargs: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    return body_for(path, **asked, **kwargs)


PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
STREAMS = pytest.mark.parametrize("stream", [False, True])


@pytest.mark.settings(min_prefill_tokens=10)
class TestShort:
    @PATHS
    @STREAMS
    async def test_a_short_prompt_goes_to_a_d_that_answers_all_of_it(
        self, cluster: Cluster, path: str, stream: bool
    ) -> None:
        p, *both = await three(cluster)
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        response = await cluster.post(body_for(path, stream=stream, logprobs=None, **more), path)
        assert response.status_code == 200
        (body,) = [body for d in both for body in d.bodies]
        assert p.bodies == []
        assert "kv_transfer_params" not in body
        if stream:
            assert spoken(response.text) == WHOLE
            usage = events(response.text)[-2]["usage"]
            roles = [e["choices"][0]["delta"].get("role") for e in events(response.text)[:-2] if "chat" in path]
            assert roles.count("assistant") == ("chat" in path)
            assert cluster.metrics.ttft.total > 0
        else:
            usage = response.json()["usage"]
        assert usage["completion_tokens"] == 4
        text = (await cluster.client.get("/metrics")).text
        assert 'baton_router_direct_requests_total{reason="short"} 1.0' in text
        assert 'baton_router_direct_requests_total{reason="cached"} 0.0' in text
        cluster.check_idle()

    async def test_a_longer_prompt_goes_to_p(self, cluster: Cluster) -> None:
        p, _, _ = await three(cluster)
        assert (await cluster.post(saying("chat", "x" * 40))).status_code == 200
        assert len(p.bodies) == 1
        assert cluster.metrics.skipped_prefill == {"short": 0, "cached": 0, "unreachable": 0}

    async def test_the_token_ids_of_a_prompt_are_counted(self, cluster: Cluster) -> None:
        p, _, _ = await three(cluster)
        for num_tokens, num_prefilled in ((9, 0), (10, 1)):
            await cluster.post({"model": "m", "prompt": [1] * num_tokens, "max_tokens": 4}, "/v1/completions")
            assert len(p.bodies) == num_prefilled

    async def test_a_short_prompt_goes_to_p_while_no_d_has_room(self, cluster: Cluster) -> None:
        p, d = await cluster.add("prefill"), await cluster.add("decode", limit=1)
        hang = d.hangs()
        first = asyncio.create_task(cluster.post(chat()))
        await cluster.until_state("decoding")
        second = asyncio.create_task(cluster.post(chat()))
        await cluster.until_state("held")
        assert len(p.bodies) == 1
        hang.release.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]
        cluster.check_idle()

    @STREAMS
    async def test_a_short_prompt_goes_to_another_d_when_one_fails(self, cluster: Cluster, stream: bool) -> None:
        p, d1, d2 = await three(cluster)
        for d in (d1, d2):
            d.script.append(Refuse(500, {"error": {"message": "no"}}))
        response = await cluster.post(chat(stream=stream))
        assert response.status_code == 200
        assert (p.bodies, len(d1.bodies) + len(d2.bodies)) == ([], 3)
        cluster.check_idle()

    async def test_a_stream_that_breaks_off_goes_on_through_p(self, cluster: Cluster) -> None:
        p, d = await cluster.fleet("prefill", "decode")
        then = StreamThen(2, "die")
        then.go.set()
        d.script.append(then)
        response = await cluster.post(chat(stream=True))
        assert spoken(response.text) == WHOLE
        assert response.text.count('"role"') == 1
        assert [body["kv_transfer_params"]["resume"] for body in p.bodies] == [
            {"token_ids": [FIRST_TOKEN, FIRST_TOKEN + 1], "created": 5}
        ]
        cluster.check_idle()

    async def test_a_client_that_leaves_gives_the_place_back(self, cluster: Cluster) -> None:
        _, d = await cluster.fleet("prefill", "decode")
        d.script.append(Hang())
        writer = await cluster.open(chat())
        await cluster.until_state("decoding")
        writer.close()
        await cluster.until_state("decoding", 0)
        cluster.check_idle()


@pytest.mark.settings(min_uncached_tokens=200, pick_decode="affinity", default_max_in_flight=64)
class TestCached:
    @PATHS
    @STREAMS
    async def test_the_next_turn_goes_to_the_d_that_has_the_earlier_ones(
        self, cluster: Cluster, path: str, stream: bool
    ) -> None:
        p, d1, d2 = await three(cluster)
        text = "a" * 2048
        await cluster.post(saying(path, text), path)
        (had,) = [d for d in (d1, d2) if d.bodies]
        response = await cluster.post(saying(path, text + "b" * 256, stream=stream), path)
        assert response.status_code == 200
        assert (len(p.bodies), len(had.bodies)) == (1, 2)
        assert "kv_transfer_params" not in had.bodies[1]
        assert cluster.metrics.skipped_prefill == {"short": 0, "cached": 1, "unreachable": 0}
        await cluster.post(saying(path, "c" * 2048), path)
        assert len(p.bodies) == 2, "another conversation"
        cluster.check_idle()

    async def test_the_next_turn_goes_to_p_while_the_d_that_has_it_has_no_room(self, cluster: Cluster) -> None:
        p, d1, d2 = await three(cluster)
        text = "a" * 2048
        await cluster.post(saying("chat", text))
        (name,) = [d.name for d in (d1, d2) if d.bodies]
        had = cluster.pool.get(name)
        assert had is not None
        had.standing.left_out = True
        await cluster.post(saying("chat", text))
        assert (len(p.bodies), len(d1.bodies), len(d2.bodies)) == (2, 1, 1)
