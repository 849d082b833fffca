"""Which request or worker an operator means: the beginning of an id does, everywhere an id does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from baton_serve.core.protocol.errors import NotFoundError
from baton_serve.core.protocol.ids import short
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.admin.answers import LocalIds
from baton_serve.router.peers.port import PeerAnswer, PeerRouters
from baton_serve.router.request.exchange import Exchange
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Hang

if TYPE_CHECKING:
    import httpx


class Another(PeerRouters):
    """Sees one other router, which has these requests; ``ids`` None: it does not answer."""

    def __init__(self, router_id: str, ids: list[str] | None) -> None:
        super().__init__(RouterRecord(router_id=router_id, url="", internal_url=""))
        self._ids = ids
        self.asked: list[str] = []

    async def gather(self, method: str, path: str, body: bytes = b"") -> list[PeerAnswer]:
        self.asked.append(path)
        if self._ids is None:
            return [PeerAnswer("0123456789ab", error="it did not answer in time")]
        beginning = path.partition("?beginning=")[2]
        found = LocalIds(ids=[each for each in self._ids if each.startswith(beginning)])
        return [PeerAnswer("0123456789ab", 200, msgspec.json.encode(found))]


async def arrive(cluster: Cluster) -> tuple[Exchange, asyncio.Task[httpx.Response]]:
    """A request that its worker does not answer."""
    worker = await cluster.add("both")
    worker.script.append(Hang())
    task = asyncio.create_task(cluster.post(chat()))
    await eventually(lambda: len(cluster.active) == 1)
    (request,) = cluster.active
    return request, task


async def abort(cluster: Cluster, given: str) -> tuple[int, Any]:
    answer = await cluster.client.post(f"/admin/requests/{given}/abort")
    return answer.status_code, answer.json()


@pytest.mark.parametrize("form", ["{}", "chatcmpl-{}", "cmpl-{}", "resp_{}", "msg_{}"])
@pytest.mark.parametrize("num_chars", [4, 8, 31, 32])
async def test_a_request_is_aborted_by_what_is_shown_of_it(cluster: Cluster, form: str, num_chars: int) -> None:
    request, task = await arrive(cluster)
    assert await abort(cluster, form.format(request.request_id[:num_chars])) == (200, {"aborted": [request.request_id]})
    answer = await task
    assert (answer.status_code, answer.headers["x-request-id"]) == (499, request.request_id)


async def test_a_beginning_that_several_ids_have_aborts_no_request(cluster: Cluster) -> None:
    request, task = await arrive(cluster)
    other = request.request_id[:7] + ("0" if request.request_id[7] != "0" else "1") + "f" * 24
    cluster.peers = Another(cluster.router_id, [other])
    status, body = await abort(cluster, request.request_id[:6])
    assert (status, body["error"]["code"]) == (409, "ambiguous_id")
    for each in (other, request.request_id):
        assert short(each) in body["error"]["message"]
    assert await abort(cluster, short(request.request_id)) == (200, {"aborted": [request.request_id]})
    await task


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ("abc", 400, "id_too_short"),
        ("zzzzzzzz", 404, "request_not_found"),
        ("ABCD1234", 404, "request_not_found"),
        ("abcd%3Fbeginning=0", 404, "request_not_found"),
        ("a" * 3000, 404, "request_not_found"),
    ],
)
async def test_an_id_that_means_no_request_is_refused(cluster: Cluster, given: str, status: int, code: str) -> None:
    """Nor are other routers asked for what is none."""
    cluster.peers = others = Another(cluster.router_id, [])
    answer = await abort(cluster, given)
    assert (answer[0], answer[1]["error"]["code"]) == (status, code)
    assert len(answer[1]["error"]["message"]) < 400
    assert others.asked == []


async def test_an_unknown_id_is_a_502_while_a_silent_router_may_have_the_request(cluster: Cluster) -> None:
    """What is shown of an id is enough all the same: two of so many characters are not alike."""
    request, task = await arrive(cluster)
    cluster.peers = Another(cluster.router_id, None)
    for given in (request.request_id[:7], "ffffffff" if request.request_id[0] != "f" else "00000000"):
        status, body = await abort(cluster, given)
        assert (status, body["error"]["code"]) == (502, "router_unreachable")
        assert "0123456789ab" in body["error"]["message"]
    assert await abort(cluster, short(request.request_id)) == (200, {"aborted": [request.request_id]})
    await task


async def test_a_worker_is_drained_by_its_name(cluster: Cluster) -> None:
    await cluster.add("decode")
    status = cluster._status(cluster.workers[0])
    record = msgspec.structs.replace(status.record, name="decode-1")
    cluster.pool.apply([])
    cluster.pool.apply([msgspec.structs.replace(status, record=record)])
    assert (await cluster.client.post("/admin/workers/decode-1/drain")).status_code != 404
    assert [worker.standing.left_out for worker in cluster.pool] == [True]
    assert (await cluster.client.get("/admin/workers")).json()["workers"][0]["name"] == "decode-1"
    assert (await cluster.client.post("/admin/workers/decode-/resume")).status_code == 404


class TestWorkers:
    async def workers(self, cluster: Cluster) -> None:
        """Two announced ones whose ids begin alike, and one that was added by URL."""
        await cluster.add("decode", name="98953095aaaa")
        await cluster.add("prefill", name="98953095bbbb")
        cluster.pool.add_static([], ["http://127.0.0.1:9"])

    async def tell(self, cluster: Cluster, given: str, what: str = "drain") -> tuple[int, Any]:
        answer = await cluster.client.post(f"/admin/workers/{given}/{what}")
        return answer.status_code, answer.json()

    async def test_the_beginning_of_a_workers_id_is_enough_if_it_is_not_ambiguous(self, cluster: Cluster) -> None:
        await self.workers(cluster)
        status, body = await self.tell(cluster, "98953095")
        assert (status, body["error"]["code"]) == (409, "ambiguous_id")
        assert "98953095a" in body["error"]["message"] and "98953095b" in body["error"]["message"]
        assert not any(worker.standing.left_out for worker in cluster.pool)
        for given, full in (("127.0.0.1:9", "http://127.0.0.1:9"), ("http://127.0.0.1:9", "http://127.0.0.1:9")):
            for what in ("drain", "resume"):
                status, body = await self.tell(cluster, given, what)
                assert (status, body["id"], body["draining"]) == (200, full, what == "drain")
        for given in ("127.0", "127.0.0.1:", "http:%2F%2F127.0.0.1"):
            answer = await cluster.client.delete(f"/admin/workers/{given}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "worker_not_found")
        assert (await cluster.client.delete("/admin/workers/127.0.0.1:9")).json()["id"] == "http://127.0.0.1:9"
        answer = await cluster.client.delete("/admin/workers/98953095a")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "worker_announced")
        status, body = await self.tell(cluster, "127.0.0.1:9")
        assert (status, body["error"]["code"]) == (404, "worker_not_found")
        assert body["error"]["code"] != NotFoundError.code

    async def test_the_address_of_a_worker_is_enough_as_a_filter(self, cluster: Cluster) -> None:
        request, task = await arrive(cluster)
        (worker,) = cluster.pool
        url = "http://127.0.0.1:9"
        cluster.pool.add_static([], [url])
        request.decode_worker = cluster.pool.get(url)
        for given, hit in (("127.0.0.1", False), ("127.0.0.1:9", True)):
            answer = await cluster.client.post("/admin/abort", json={"worker": given})
            assert answer.json()["aborted"] == ([request.request_id] if hit else [])
        assert worker.worker_id == "b0"
        await task

    async def test_the_beginning_of_an_engines_id_is_enough(self, cluster: Cluster) -> None:
        await cluster.add("prefill")
        cluster.store.grant("enginep0", ["lease-1"], 60_000)
        for given, found in (("enginep0", ["lease-1"]), ("engi", ["lease-1"]), ("unknown-engine", [])):
            answer = await cluster.client.get("/admin/leases", params={"engine": given})
            assert [lease["lease_id"] for lease in answer.json()["leases"]] == found
