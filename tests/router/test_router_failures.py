"""What happens when workers fail: who is tried next, with which blocks, and what the client is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from router_cluster import Cluster, chat, events, eventually, make_settings, spoken
from router_stubs import Hang, Refuse, Reset, StreamThen, StubWorker, word

from router.settings import RouterSettings

WHOLE = "".join(map(word, range(4)))
BROKEN = {"error": {"message": "broken", "type": "server_error", "code": "oops"}}
FAILURES = [Refuse(500, BROKEN), Refuse(503, BROKEN), Refuse(429, BROKEN), Reset(), Reset(b"HTTP/1.1 200 OK\r\ncon")]


async def trio(cluster: Cluster, *roles: str, **kwargs: Any) -> list[Any]:
    return [await cluster.add(role, **kwargs) for role in roles]


@pytest.mark.parametrize("failure", FAILURES, ids=["500", "503", "429", "reset", "reset in headers"])
@pytest.mark.parametrize("stream", [False, True])
async def test_another_d_reads_the_same_blocks(cluster: Cluster, failure: Any, stream: bool) -> None:
    p, d1, d2 = await trio(cluster, "prefill", "decode", "decode")
    d1.script.append(failure)
    d2.script.append(failure)
    d1.script.append(None)
    response = await cluster.post(chat(stream=stream))
    text = spoken(response.text) if stream else response.json()["choices"][0]["message"]["content"]
    assert text == WHOLE
    assert len(p.bodies) == 1, "prefilled once"
    blocks = [body["kv_transfer_params"] for body in d1.bodies + d2.bodies]
    assert len(blocks) == 3
    assert all(block == blocks[0] for block in blocks)
    assert cluster.services.metrics.retries["decode"] == 2
    cluster.check_idle()


@pytest.mark.parametrize("failure", FAILURES, ids=["500", "503", "429", "reset", "reset in headers"])
async def test_another_p_is_asked(cluster: Cluster, failure: Any) -> None:
    p1, p2, _ = await trio(cluster, "prefill", "prefill", "decode")
    p1.script.append(failure)
    p2.script.append(failure)
    response = await cluster.post(chat())
    assert response.json()["choices"][0]["message"]["content"] == WHOLE
    assert sorted([len(p1.bodies), len(p2.bodies)]) == [1, 2]
    cluster.check_idle()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_attempts_are_bounded(cluster: Cluster, role: str) -> None:
    p, d = await trio(cluster, "prefill", "decode")
    worker = p if role == "prefill" else d
    worker.script.extend([Refuse(500, BROKEN)] * 20)
    response = await cluster.post(chat())
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "broken"
    assert len(worker.bodies) == 3
    cluster.check_idle()


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_goes_to_the_client_as_it_is(cluster: Cluster, role: str, status: int) -> None:
    p, d = await trio(cluster, "prefill", "decode")
    error = {"message": "too long", "type": "invalid_request_error", "param": "messages", "code": "context_length"}
    (p if role == "prefill" else d).script.append(Refuse(status, {"error": error}))
    response = await cluster.post(chat())
    assert (response.status_code, response.json()) == (status, {"error": error})
    assert len(p.bodies) == 1
    cluster.check_idle()


async def test_a_refused_internal_token_is_not_the_clients_fault(cluster: Cluster) -> None:
    p, _ = await trio(cluster, "prefill", "decode")
    p.script.extend([Refuse(401, BROKEN)] * 3)
    assert (await cluster.post(chat())).status_code == 502


async def test_d_refuses_after_the_first_token(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode")
    d.script.append(Refuse(400, BROKEN))
    response = await cluster.post(chat(stream=True))
    assert response.status_code == 200
    seen = events(response.text)
    assert seen[-1]["error"]["message"] == "broken"
    assert spoken(response.text) == word(0)
    cluster.check_idle()


async def break_off(cluster: Cluster, d: StubWorker, then: str) -> str:
    """A stream that breaks after D's first token has reached the client."""
    broken = StreamThen(1, then)
    d.script.append(broken)
    async with cluster.client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
        text = ""
        async for part in response.aiter_text():
            text += part
            if word(1) in text:
                broken.go.set()
    return text


@pytest.mark.parametrize("then", ["die", "stop"])
async def test_d_dies_in_the_stream(cluster: Cluster, then: str) -> None:
    _, d = await trio(cluster, "prefill", "decode")
    text = await break_off(cluster, d, then)
    seen = events(text)
    assert spoken(text) == word(0) + word(1)
    assert seen[-1]["error"]["code"] == "upstream_error"
    assert cluster.services.metrics.outcomes["failed", "upstream_error"] == 1
    cluster.check_idle()


async def test_an_error_event_of_d_reaches_the_client_once(cluster: Cluster) -> None:
    _, d = await trio(cluster, "prefill", "decode")
    seen = events(await break_off(cluster, d, "error"))
    assert [event["error"]["message"] for event in seen if "error" in event] == ["broke"]
    assert len(cluster.services.metrics.outcomes) == 1
    assert next(iter(cluster.services.metrics.outcomes))[0] == "failed"


async def test_an_engine_that_fails_after_its_role_chunk_is_no_200(cluster: Cluster) -> None:
    p, d = await trio(cluster, "prefill", "decode", ours=False)
    d.script.extend([StreamThen(0, "error")] * 3)
    response = await cluster.post(chat(stream=True))
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "broke"
    assert len(p.bodies) == 3, "blocks without a lease are gone after a failed D"


async def test_other_engines_blocks_survive_a_refused_connection_only(cluster: Cluster) -> None:
    p, d1, d2 = await trio(cluster, "prefill", "decode", "decode", ours=False)
    await d1.stop()
    for _ in range(2):
        assert (await cluster.post(chat())).status_code == 200
    assert (len(p.bodies), len(d2.bodies)) == (2, 2)


async def test_a_d_that_cannot_be_reached_is_left_out_until_it_answers(cluster: Cluster) -> None:
    p, d = await trio(cluster, "prefill", "decode")
    port = d.port
    await d.stop()
    writer = await cluster.open(chat())
    await eventually(lambda: not next(w for w in cluster.services.pool if w.worker_id == "d1").healthy)
    await cluster.until_state("held")
    await d.start(port)
    await cluster.until_state("held", 0)
    await eventually(lambda: cluster.services.metrics.outcomes["done", ""] == 1)
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    writer.close()


async def test_no_p_can_be_reached(cluster: Cluster) -> None:
    p, _ = await trio(cluster, "prefill", "decode")
    await p.stop()
    response = await cluster.post(chat())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "worker_unreachable"
    cluster.check_idle()


class TestShortTimeouts:
    @pytest.fixture
    def settings(self) -> RouterSettings:
        return make_settings(first_byte_timeout_s=0.1, prefill_timeout_s=0.1)

    async def test_a_hanging_d_is_left_for_another_one(self, cluster: Cluster) -> None:
        p, d1, d2 = await trio(cluster, "prefill", "decode", "decode")
        for d in (d1, d2):
            d.script.append(Hang())
        response = await cluster.post(chat(stream=True))
        assert spoken(response.text) == WHOLE
        assert len(p.bodies) == 1
        await eventually(lambda: d1.num_disconnects == d2.num_disconnects == 1)

    async def test_unstreamed_a_d_that_has_not_read_is_left(self, cluster: Cluster) -> None:
        p, d = await trio(cluster, "prefill", "decode")
        d.script.append(Hang())
        assert (await cluster.post(chat())).status_code == 200
        assert (len(p.bodies), len(d.bodies), d.num_disconnects) == (1, 2, 1)

    async def test_unstreamed_a_d_that_has_read_may_take_its_time(self, cluster: Cluster) -> None:
        _, d = await trio(cluster, "prefill", "decode")
        slow = Hang()
        d.script.append(slow)
        request = asyncio.create_task(cluster.post(chat()))
        await cluster.until_state("reading")
        cluster.leases.tracked["leasep01"]()  # as the store says when P was told "read"
        await asyncio.wait([request], timeout=0.35)
        assert (request.done(), len(d.bodies)) == (False, 1)
        slow.release.set()
        assert (await request).status_code == 200

    async def test_a_hanging_p_is_left_for_another_one(self, cluster: Cluster) -> None:
        p1, p2, _ = await trio(cluster, "prefill", "prefill", "decode")
        for p in (p1, p2):
            p.script.append(Hang())
        assert (await cluster.post(chat())).status_code == 200
        await eventually(lambda: p1.num_disconnects == p2.num_disconnects == 1)


class TestLostLeases:
    async def _hold(self, cluster: Cluster) -> tuple[Any, Any, Any]:
        p, _ = await trio(cluster, "prefill", "decode")
        worker = next(worker for worker in cluster.services.pool if worker.worker_id == "d1")
        worker.limit = 0
        writer = await cluster.open(chat(stream=True))
        await cluster.until_state("held")
        return p, worker, writer

    async def _go_on(self, cluster: Cluster, worker: Any) -> str:
        worker.limit = 8
        cluster.services.pool.room_changed()
        return (await cluster._readers[0].readuntil(b"data: [DONE]\n\n")).decode()

    async def test_a_held_request_is_prefilled_again_at_once(self, cluster: Cluster) -> None:
        p, worker, writer = await self._hold(cluster)
        cluster.leases.tracked["leasep01"]()
        await eventually(lambda: len(p.bodies) == 2)
        await cluster.until_state("held")
        assert list(cluster.leases.tracked) == ["leasep02"]
        text = await self._go_on(cluster, worker)
        assert spoken(text.replace("\r\n", "\n")) == WHOLE, "the first token is not repeated"
        assert p.bodies[0]["seed"] == p.bodies[1]["seed"]
        writer.close()

    async def test_an_engine_that_leaves_loses_its_blocks(self, cluster: Cluster) -> None:
        p, worker, writer = await self._hold(cluster)
        other = await cluster.add("prefill")
        cluster.workers.remove(p)
        cluster.announce()
        await eventually(lambda: len(other.bodies) == 1)
        text = await self._go_on(cluster, worker)
        assert spoken(text.replace("\r\n", "\n")) == WHOLE
        writer.close()
        await p.stop()

    async def test_another_first_token_is_an_error_not_a_wrong_text(self, cluster: Cluster) -> None:
        p, _, writer = await self._hold(cluster)
        p.first_token += 1
        cluster.leases.tracked["leasep01"]()
        raw = await cluster._readers[0].readuntil(b"}}")
        assert b"another first token" in raw
        await cluster.until_state("held", 0)
        cluster.check_idle()
        writer.close()

    async def test_blocks_that_two_d_cannot_read_are_prefilled_again(self, cluster: Cluster) -> None:
        p, d = await trio(cluster, "prefill", "decode")
        unreadable = Refuse(502, {"error": {"message": "no", "type": "server_error", "code": "kv_read_failed"}})
        d.script.extend([unreadable, unreadable])
        response = await cluster.post(chat(stream=True))
        assert spoken(response.text) == WHOLE
        assert (len(p.bodies), len(d.bodies)) == (2, 3)
        assert cluster.leases.released == ["leasep01"]
        cluster.check_idle()
