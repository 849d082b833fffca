"""Workers that an administrator adds by URL and deletes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import ValidationError

from baton_serve.core.protocol.addresses import MAX_URL_CHARS
from baton_serve.core.protocol.worker import Role
from baton_serve.core.protocol.worker_address import worker_address
from baton_serve.router.admin.shared_workers import Shared
from baton_serve.router.pool import pool
from tests.kits.router.cluster import Cluster, chat, eventually, make_settings
from tests.kits.router.stub_workers import StubWorker

pytestmark = pytest.mark.settings(internal_token="s3cret-internal")


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[StubWorker, StubWorker]]:
    """A P and a D of another kind, which nobody has announced."""
    made = StubWorker("prefill", ours=False, name="p"), StubWorker("decode", ours=False, name="d")
    for worker in made:
        await worker.start()
    yield made
    for worker in made:
        await worker.stop()


async def add(cluster: Cluster, url: str, role: str) -> tuple[int, Any]:
    answer = await cluster.client.post("/admin/workers", json={"url": url, "role": role})
    return answer.status_code, answer.json()


async def test_added_workers_are_asked_for_their_models_and_serve(
    cluster: Cluster, pair: tuple[StubWorker, StubWorker]
) -> None:
    for worker in pair:
        status, view = await add(cluster, worker.url.removeprefix("http://") + "/", worker.role)
        assert (status, view["id"], view["role"], view["models"]) == (201, worker.url, worker.role, None)
    await eventually(lambda: [worker.models for worker in cluster.pool] == [("m",), ("m",)])
    assert (await cluster.post(chat())).status_code == 200
    for worker in pair:
        assert len(worker.bodies) == 1
        assert not any("s3cret-internal" in value for sent in worker.headers for value in sent.values())


async def test_a_worker_whose_announcements_are_old_is_shown_as_such(cluster: Cluster) -> None:
    """Not one that was added by its address: it announces nothing."""
    announced = await cluster.add("prefill")
    assert (await add(cluster, "http://127.0.0.1:9", "both"))[0] == 201

    async def problems_by_url() -> dict[str, str]:
        workers = (await cluster.client.get("/admin/workers")).json()["workers"]
        return {worker["url"]: worker["problem"] for worker in workers}

    assert set((await problems_by_url()).values()) == {""}
    for worker in cluster.pool:
        worker.forget_report()
    problems = await problems_by_url()
    assert "its numbers are old" in problems[announced.url]
    assert problems["http://127.0.0.1:9"] == ""


async def test_the_same_worker_is_not_added_twice(cluster: Cluster) -> None:
    announced = await cluster.add("prefill")
    assert (await add(cluster, "http://127.0.0.1:9", "both"))[0] == 201
    for url in (announced.url, "127.0.0.1:9"):
        status, body = await add(cluster, url, "decode")
        assert (status, body["error"]["code"]) == (409, "worker_exists")
    assert len(cluster.pool) == 2


@pytest.mark.parametrize(
    ("url", "role"),
    [
        ("ftp://h:1", "decode"),
        ("http://u:p@h:1", "decode"),
        ("h:0", "both"),
        ("", "both"),
        ("nonsense", "both"),
        ("h:1", "router"),
    ],
)
async def test_a_malformed_worker_is_refused(cluster: Cluster, url: str, role: str) -> None:
    status, body = await add(cluster, url, role)
    assert (status, body["error"]["param"]) == (400, "role" if role == "router" else "url")
    assert not len(cluster.pool)


async def test_an_address_that_another_router_would_not_take_is_refused(cluster: Cluster) -> None:
    """As it is passed on, with http:// before it; one is enough to keep every router that starts from learning any."""
    longest = "w:1/" + "x" * (MAX_URL_CHARS - len("http://w:1/"))
    async with other_router(cluster) as other:
        for url in (longest + "x", f"http://{longest}x"):
            assert (await add(cluster, url, "decode"))[0] == 400
            told = {"url": url, "role": "decode"}
            assert (await other.post("/internal/workers/add", json=told)).status_code == 400
        assert (await add(cluster, longest + "//", "decode"))[0] == 201
        assert (await cluster.client.post(f"/admin/workers/http://{longest}/drain")).status_code == 200
        shared = await other.get("/internal/workers/shared")
    url = f"http://{longest}"
    assert shared.json() == {"added": [{"url": url, "role": "decode"}], "left_out": [url]}
    assert Shared.model_validate_json(shared.content).added[0].url == url


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_configured_address_has_the_same_limit(name: str) -> None:
    longest = "w:1/" + "x" * (MAX_URL_CHARS - len("http://w:1/"))
    assert getattr(make_settings(**{name: (longest,)}), name) == (f"http://{longest}",)
    with pytest.raises(ValidationError, match=f"at most {MAX_URL_CHARS} characters"):
        make_settings(**{name: (longest + "x",)})


async def test_a_request_that_runs_on_a_deleted_worker_is_finished(
    cluster: Cluster, pair: tuple[StubWorker, StubWorker]
) -> None:
    p, d = pair
    for worker in pair:
        await add(cluster, worker.url, worker.role)
    await eventually(lambda: all(worker.models for worker in cluster.pool))
    hang = d.hangs()
    running = asyncio.create_task(cluster.post(chat()))
    await cluster.until_state("reading")
    for worker in pair:
        assert (await cluster.client.delete(f"/admin/workers/{worker.url}")).json()["id"] == worker.url
    assert (await cluster.client.get("/admin/workers")).json() == {"workers": [], "lost": []}
    cluster.announce()
    assert (await cluster.post(chat())).status_code == 503
    hang.release.set()
    assert (await running).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    cluster.check_idle()


async def test_a_worker_of_the_registry_is_not_deleted(cluster: Cluster) -> None:
    await cluster.add("both")
    answer = await cluster.client.delete("/admin/workers/b0")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "worker_announced")
    assert "drain it" in answer.json()["error"]["message"]
    assert (await cluster.client.delete("/admin/workers/nobody")).status_code == 404
    assert len(cluster.pool) == 1


async def test_a_host_name_with_several_addresses_is_deleted_as_it_was_added(cluster: Cluster) -> None:
    name = worker_address("vllm+http://pods:1?max_num_seqs=3")
    pool = cluster.pool
    pool.add_addresses({name.at("10.0.0.1"): Role.DECODE, name.at("10.0.0.2"): Role.DECODE}, given=name)
    async with other_router(cluster) as other:
        shared = (await other.get("/internal/workers/shared")).json()
    assert shared["added"] == [{"url": "vllm+http://pods:1?max_num_seqs=3", "role": "decode"}]
    assert (await add(cluster, "vllm+http://pods:1", "decode"))[0] == 409
    assert (await add(cluster, "http://10.0.0.2:1", "decode"))[0] == 409
    answer = await cluster.client.delete("/admin/workers/vllm+http://10.0.0.2:1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "worker_of_a_name")
    assert (await cluster.client.post("/admin/workers/vllm+http://10.0.0.2:1/drain")).status_code == 200
    assert (await cluster.client.delete("/admin/workers/vllm+http://pods:1")).status_code == 200
    assert len(pool) == 0


async def test_another_router_forgets_what_a_host_name_stands_for(cluster: Cluster) -> None:
    name = worker_address("vllm+http://pods:1")
    cluster.pool.add_addresses({name.at("10.0.0.1"): Role.DECODE}, given=name)
    async with other_router(cluster) as other:
        assert (await other.post("/internal/workers/forget", json={"id": name.worker_id})).status_code == 200
        assert len(cluster.pool) == 0
        told = {"url": "vllm+http://h:1?chanel=2", "role": "decode"}
        assert (await other.post("/internal/workers/add", json=told)).status_code == 400


def other_router(cluster: Cluster) -> httpx.AsyncClient:
    """What asks on the internal port."""
    transport = httpx.ASGITransport(cluster.internal())
    return httpx.AsyncClient(transport=transport, base_url="http://internal")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/internal/abort", b'{"older_than_s":NaN}', 400, "invalid_value"),
        ("POST", "/internal/workers/leave-out", b'{"id":"\\ud800","left_out":true}', 400, "invalid_value"),
        ("POST", "/internal/workers/leave-out", b'{"left_out":"%b"}' % (b"x" * 100_000), 400, "invalid_value"),
        ("POST", "/internal/workers/leave-out", b'{"id":"%b","left_out":true}' % (b"x" * 513), 400, "invalid_value"),
        ("POST", "/internal/workers/add", b'{"role":"both","url":"http://w/%b"}' % (b"x" * 513), 400, "invalid_value"),
        ("GET", "/internal/nothing", b"", 404, "unknown_url"),
        ("GET", "/internal/abort", b"", 405, "method_not_allowed"),
        ("POST", "/internal/requests/x/abort", b"", 404, "request_not_found"),
    ],
)
async def test_the_internal_port_refuses_as_the_public_one_does(
    cluster: Cluster, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    async with other_router(cluster) as other:
        answer = await other.request(method, path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert len(answer.content) < 500


async def test_a_bounded_number_of_others_is_left_out_before_they_are_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_LEFT_OUT", 2)
    for worker_id in ("d0", "d1", "d0", "d2"):  # d0 again: d1 is the oldest
        cluster.pool.told_left_out(worker_id, True)
    for _ in range(3):
        await cluster.add("decode", ours=False)
    assert [worker.standing.left_out for worker in cluster.pool] == [True, False, True]


async def test_a_worker_that_others_left_out_before_it_was_known_here_is_left_out(cluster: Cluster) -> None:
    async with other_router(cluster) as other:
        for worker_id, left_out in (("d0", True), ("d1", True), ("d1", False)):
            told = {"id": worker_id, "left_out": left_out}
            assert (await other.post("/internal/workers/leave-out", json=told)).json() == {"noted": True}
    await cluster.add("decode", ours=False)
    await cluster.add("decode", ours=False)
    assert [worker.standing.left_out for worker in cluster.pool] == [True, False]
    assert (await cluster.client.post("/admin/workers/d0/resume")).status_code == 200
    cluster.announce()
    assert [worker.standing.left_out for worker in cluster.pool] == [False, False]
