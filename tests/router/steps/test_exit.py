"""However a request ends, in whatever state: its workers notice, its lease is released, nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.request.ended import EndedRequests
from baton_serve.router.request.exchange import LiveRequest
from baton_serve.router.steps import exit as exits
from baton_serve.router.telemetry.metrics.metrics import Metrics
from baton_serve.router.telemetry.tracing.spans import RequestTrace
from tests.kits.router.cluster import Cluster, chat, events, eventually
from tests.kits.router.stub_workers import Hang, Raw, StreamThen, StubWorker

STATES = ["queued", "prefilling", "held", "reading", "decoding"]


async def arrange(cluster: Cluster, state: str) -> StubWorker | None:
    """Workers such that the next request stops in that state; returns the one it then is on."""
    p, d = await cluster.fleet("prefill", "decode")
    await fill(cluster, "p0", full=state == "queued")
    await fill(cluster, "d1", full=state == "held")
    if state == "prefilling":
        p.script.append(Hang())
        return p
    if state == "reading":
        d.script.append(Hang())
    if state == "decoding":
        d.script.append(StreamThen(2, "hang"))
    return d if state in ("reading", "decoding") else None


async def fill(cluster: Cluster, worker_id: str, *, full: bool) -> None:
    """Take up all places on a worker, or none."""
    (worker,) = [worker for worker in cluster.pool if worker.worker_id == worker_id]
    worker.usage.limit = 0 if full else 8


async def arrive(cluster: Cluster, state: str, **kwargs: Any) -> tuple[StubWorker | None, Any]:
    on = await arrange(cluster, state)
    writer = await cluster.open(chat(stream=True, **kwargs))
    await cluster.until_state(state)
    if on is not None:
        await eventually(lambda: len(on.bodies) == 1)
    if state == "decoding":
        (request,) = cluster.active
        await eventually(lambda: request.progress.num_tokens >= 3)
    return on, writer


async def check_ended(cluster: Cluster, state: str, on: StubWorker | None) -> None:
    await cluster.until_state(state, 0)
    cluster.check_idle()
    if on is not None:
        await eventually(lambda: on.num_disconnects == 1, "the worker saw the connection close")
    if state in ("held", "reading"):
        assert cluster.leases.released == ["leasep01"]
    elif state in ("queued", "prefilling"):
        assert cluster.leases.released == []
    assert dict(cluster.metrics.aborted_in) == {state: 1}


@pytest.mark.parametrize("state", STATES)
async def test_a_request_ends_when_its_client_leaves(cluster: Cluster, state: str) -> None:
    on, writer = await arrive(cluster, state)
    writer.close()
    await check_ended(cluster, state, on)
    assert cluster.metrics.outcomes["aborted", "client_gone"] == 1


@pytest.mark.parametrize("state", STATES)
async def test_a_request_ends_when_an_administrator_aborts_it(cluster: Cluster, state: str) -> None:
    on, _ = await arrive(cluster, state)
    (request,) = cluster.active
    response = await cluster.client.post(f"/admin/requests/{request.request_id}/abort")
    assert response.json() == {"aborted": [request.request_id]}
    await check_ended(cluster, state, on)
    raw = (await cluster._readers[0].readuntil(b'},"request_id"')).decode()
    assert "request_cancelled" in raw
    # Before the first content an error is an error; after it, one event in the same shape.
    assert raw.startswith("HTTP/1.1 499" if state in ("queued", "prefilling") else "HTTP/1.1 200")


@pytest.mark.parametrize("state", STATES)
async def test_a_request_ends_at_its_deadline(cluster: Cluster, state: str) -> None:
    on, _ = await arrive(cluster, state)
    (request,) = cluster.active
    request.deadline()
    await check_ended(cluster, state, on)
    assert cluster.metrics.outcomes["aborted", "deadline_exceeded"] == 1


async def test_the_header_sets_the_deadline(cluster: Cluster) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(Hang())
    response = await cluster.post(chat(), headers={"x-request-timeout": "0.05"})
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    await eventually(lambda: p.num_disconnects == 1)
    cluster.check_idle()


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1_0"])
async def test_a_malformed_deadline_is_refused(cluster: Cluster, value: str) -> None:
    response = await cluster.post(chat(), headers={"x-request-timeout": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-timeout"


@pytest.mark.settings(held_timeout_s=0.05)
class TestShortHeldTimeout:
    async def test_a_request_for_which_no_d_has_room_in_time_is_a_503(self, cluster: Cluster) -> None:
        await arrange(cluster, "held")
        response = await cluster.post(chat())
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_room"
        assert cluster.leases.released == ["leasep01"]
        cluster.check_idle()

    async def test_after_the_first_token_the_error_is_an_event(self, cluster: Cluster) -> None:
        await arrange(cluster, "held")
        response = await cluster.post(chat(stream=True))
        assert response.status_code == 200
        assert events(response.text)[-1]["error"]["code"] == "no_room"
        cluster.check_idle()


async def test_shutdown_aborts_what_runs_and_releases(cluster: Cluster) -> None:
    on, _ = await arrive(cluster, "reading")
    cluster.server.stop()
    await check_ended(cluster, "reading", on)
    assert b"shutting_down" in await cluster._readers[0].readuntil(b'},"request_id"')


async def test_a_bug_in_a_policy_hits_who_asked_for_a_place_and_nobody_else(cluster: Cluster) -> None:
    on, leaving = await arrive(cluster, "reading")
    await fill(cluster, "d1", full=True)
    await cluster.open(chat())
    await cluster.until_state("held")

    class Broken:
        def pick(self, workers: Any, about: Any) -> Any:
            raise KeyError("a bug in a policy")

    cluster.legs.pick_decode = Broken()
    await fill(cluster, "d1", full=False)
    leaving.close()
    assert b"500" in await cluster._readers[1].readuntil(b"\r\n")
    await cluster.until_state("held", 0)
    await cluster.until_state("reading", 0)
    assert sorted(cluster.leases.released) == ["leasep01", "leasep02"]
    assert on is not None
    await eventually(lambda: on.num_disconnects == 1)
    assert cluster.metrics.outcomes.pop(("failed", "internal_error")) == 1
    cluster.check_idle()


@pytest.mark.settings(log_requests=True)
@pytest.mark.usefixtures("exporter")
@pytest.mark.interpreted
@pytest.mark.parametrize("observer", ["facts", "metrics", "list", "log", "trace", "phase"])
async def test_an_observer_that_raises_keeps_nothing_and_harms_no_other(
    cluster: Cluster, observer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("a bug in an observer")

    places = {"metrics": (Metrics, "ended"), "list": (EndedRequests, "add"), "log": (exits, "log_end")}
    places["facts"] = (LiveRequest, "facts_at_end")
    of_traces = {"trace": (RequestTrace, "end"), "phase": (RequestTrace, "left")}
    monkeypatch.setattr(*(places | of_traces)[observer], broken)
    on, _ = await arrive(cluster, "reading")
    (request,) = cluster.active
    request.stop(UnavailableError("It failed."))
    assert on is not None
    await eventually(lambda: on.num_disconnects == 1)
    await cluster.until_state("reading", 0)
    cluster.check_idle()
    assert cluster.leases.released == ["leasep01"]
    assert "a bug in an observer" in caplog.text
    assert bool(cluster.ended()) == (observer not in ("facts", "list"))
    assert bool(cluster.metrics.outcomes) == (observer not in ("facts", "metrics"))
    assert b"It failed." in await cluster._readers[0].readuntil(b'},"request_id"')


@pytest.mark.interpreted
async def test_an_end_that_raises_keeps_no_body(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = exits.Exit.settle

    def broken(*args: Any) -> None:
        settle(*args)
        raise KeyError("a bug in the end")

    monkeypatch.setattr(exits.Exit, "settle", broken)
    on, writer = await arrive(cluster, "reading")
    assert cluster.body_budget.used_bytes
    writer.close()
    await check_ended(cluster, "reading", on)
    await eventually(lambda: not cluster.body_budget.used_bytes)
    assert not cluster.front.calls._arrivals


async def test_an_abort_with_a_filter_needs_a_filter(cluster: Cluster) -> None:
    response = await cluster.client.post("/admin/abort", json={})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "empty_filter")
    response = await cluster.client.post("/admin/abort")
    assert (response.status_code, response.json()["error"]["message"]) == (
        400,
        "This request needs a JSON object as its body.",
    )
    response = await cluster.client.post("/admin/abort", json={"sate": "held"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "sate")
    response = await cluster.client.post("/admin/abort", json={"all": True, "state": "held"})
    assert response.status_code == 400
    assert "does not combine" in response.json()["error"]["message"]
    response = await cluster.client.post("/admin/abort", content=b"{", headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, None, "invalid_json")


@pytest.mark.parametrize(
    ("wanted", "hit"),
    [
        ({"all": True}, True),
        ({"state": "held"}, True),
        ({"state": "queued"}, False),
        ({"user": "ann"}, True),
        ({"user": "bob"}, False),
        ({"model": "m", "worker": "p0"}, True),
        ({"worker": "d1"}, False),
        ({"older_than_s": 1000}, False),
        ({"older_than_s": 0, "user": "ann"}, True),
    ],
)
async def test_an_abort_by_filter_ends_the_requests_that_it_names(
    cluster: Cluster, wanted: dict[str, Any], hit: bool
) -> None:
    _, writer = await arrive(cluster, "held", user="ann")
    (request,) = cluster.active
    response = await cluster.client.post("/admin/abort", json=wanted)
    assert response.json() == {"aborted": [request.request_id] if hit else [], "unreachable_routers": []}
    writer.close()
    await cluster.until_state("held", 0)
    cluster.check_idle()


async def test_the_admin_listings_show_requests_leases_and_workers(cluster: Cluster) -> None:
    _, writer = await arrive(cluster, "held", user="ann")
    (live,) = cluster.active
    (request,) = (await cluster.client.get("/admin/requests")).json()["requests"]
    assert request["id"] == live.request_id
    assert (request["state"], request["user"], request["prefill_worker"]) == ("held", "ann", "p0")
    assert (request["lease_id"], request["lease_remaining_ms"], request["num_tokens"]) == ("leasep01", 4321, 1)
    (lease,) = (await cluster.client.get("/admin/leases")).json()["leases"]
    assert (lease["lease_id"], lease["engine_id"], lease["request_id"]) == ("leasep01", "enginep0", live.request_id)
    assert lease["state"] == "held"
    assert 0 < lease["remaining_ms"] <= 6000
    workers = (await cluster.client.get("/admin/workers")).json()["workers"]
    assert [(w["id"], w["role"], w["compatibility_hash"], w["healthy"]) for w in workers] == [
        ("p0", "prefill", "hash", True),
        ("d1", "decode", "hash", True),
    ]
    metrics = (await cluster.client.get("/metrics")).text
    assert 'baton_router_requests{state="held"} 1.0' in metrics
    assert "baton_router_held_requests 1.0" in metrics
    writer.close()
    await cluster.until_state("held", 0)


async def test_admin_shows_ranks_and_handshakes_of_a_worker(cluster: Cluster) -> None:
    await arrange(cluster, "held")
    (d1,) = [worker for worker in cluster.pool if worker.worker_id == "d1"]
    load = WorkerLoad(peers_connecting=1, peers_connected=2, peers_failed=3, peer_errors={"e9": "timeout: 10 s"})
    d1.tp = 4
    d1.report(load, 0.0)
    views = {worker["id"]: worker for worker in (await cluster.client.get("/admin/workers")).json()["workers"]}
    assert (views["d1"]["tp"], views["p0"]["tp"]) == (4, 1)
    assert views["d1"]["handshakes"] == {
        "connecting": 1,
        "connected": 2,
        "failed": 3,
        "errors": {"e9": "timeout: 10 s"},
    }
    assert views["p0"]["handshakes"] == {"connecting": 0, "connected": 0, "failed": 0, "errors": {}}


@pytest.mark.parametrize("how", ["deadline", "abort", "left"])
async def test_a_request_whose_client_has_the_last_event_is_done_whatever_follows(cluster: Cluster, how: str) -> None:
    """D's answer over HTTP has not ended yet."""
    _, d = await cluster.fleet("prefill", "decode")
    last = b'data: {"choices":[{"index":0,"delta":{"content":" t1"},"finish_reason":"length"}]}\n\n'
    d.script.append(Raw([b":8\n" + last + b":end\ndata: [DONE]\n\n"], then="hang"))
    headers = {"x-request-timeout": "1.5"} if how == "deadline" else {}
    path, text = "/v1/chat/completions", ""
    async with cluster.client.stream("POST", path, json=chat(stream=True), headers=headers) as response:
        async for part in response.aiter_text():
            text += part
            if "[DONE]" in text and how == "abort":
                assert (await cluster.client.post("/admin/abort", json={"all": True})).status_code == 200
            elif "[DONE]" in text and how == "left":
                break
    assert events(text)[-1] == "[DONE]" and not any("error" in event for event in events(text))
    await eventually(cluster.is_idle)
    await eventually(lambda: d.num_disconnects == 1, "D's connection cannot be used again")
    assert [(one.outcome, one.status) for one in cluster.ended()] == [("done", None)]
