"""Taking a worker out of the rotation and back, through the admin REST."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from baton_serve.core.protocol.hello import worker_proof
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.pool import Worker
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import StubWorker

TOKEN = "s3cret-internal"
pytestmark = pytest.mark.settings(internal_token=TOKEN)


async def three(cluster: Cluster) -> tuple[StubWorker, Worker, Worker]:
    """A P and two Ds: the first D, which knows the internal token, and how the router sees both."""
    _, stub, _ = await cluster.fleet("prefill", "decode", "decode")
    _, d1, d2 = cluster.pool
    stub.prove = partial(worker_proof, hello_key(TOKEN), d1)
    return stub, d1, d2


async def tell(cluster: Cluster, worker_id: str, what: str) -> tuple[int, Any]:
    answer = await cluster.client.post(f"/admin/workers/{worker_id}/{what}")
    return answer.status_code, answer.json()


async def view(cluster: Cluster, worker: Worker) -> Any:
    rows = (await cluster.client.get("/admin/workers")).json()["workers"]
    return next(row for row in rows if row["id"] == worker.worker_id)


async def test_a_drained_worker_is_sent_nothing_until_it_is_resumed(cluster: Cluster) -> None:
    stub, d1, _ = await three(cluster)
    for _ in range(2):
        assert await tell(cluster, "d1", "drain") == (
            200,
            {"id": "d1", "draining": True, "told": True, "unreachable_routers": []},
        )
    assert stub.told == [("drain", "Bearer s3cret-internal")] * 2
    row = await view(cluster, d1)
    assert (row["draining"], row["takes_work"], row["healthy"]) == (True, False, True)
    for _ in range(4):
        assert (await cluster.post(chat())).status_code == 200
    assert [len(stub.bodies) for stub in cluster.workers] == [4, 0, 4]
    for _ in range(2):
        assert await tell(cluster, "d1", "resume") == (
            200,
            {"id": "d1", "draining": False, "told": True, "unreachable_routers": []},
        )
    assert (await view(cluster, d1))["takes_work"]
    for _ in range(4):
        await cluster.post(chat())
    assert len(stub.bodies) == 2
    cluster.check_idle()


async def test_a_request_that_runs_on_a_drained_worker_goes_on(cluster: Cluster) -> None:
    stub, _, d2 = await three(cluster)
    d2.standing.left_out = True
    hang = stub.hangs()
    running = asyncio.create_task(cluster.post(chat()))
    await cluster.until_state("reading")
    await tell(cluster, "d1", "drain")
    hang.release.set()
    assert (await running).status_code == 200
    assert len(stub.bodies) == 1
    cluster.check_idle()


async def test_a_resume_is_answered_once_the_worker_has_announced_it(cluster: Cluster) -> None:
    """So a request that is sent after the answer finds the worker."""
    stub, d1, _ = await three(cluster)
    d1.report(WorkerLoad(draining=True), 1.0)
    resuming = asyncio.create_task(tell(cluster, "d1", "resume"))
    await eventually(lambda: bool(stub.told))
    await eventually(lambda: not d1.standing.left_out)
    assert not resuming.done() and not d1.takes_work
    d1.report(WorkerLoad(), 2.0)
    cluster.pool.room_changed()
    assert (await resuming)[0] == 200 and d1.takes_work


async def test_a_request_that_waits_goes_on_when_the_worker_is_resumed(cluster: Cluster) -> None:
    _, _, d2 = await three(cluster)
    d2.standing.left_out = True
    await tell(cluster, "d1", "drain")
    waiting = asyncio.create_task(cluster.post(chat()))
    await cluster.until_state("held")
    await tell(cluster, "d1", "resume")
    assert (await waiting).status_code == 200


async def test_a_worker_that_cannot_be_told_is_left_out_here(cluster: Cluster) -> None:
    stub, d1, _ = await three(cluster)
    stub.told_status = 500
    status, body = await tell(cluster, "d1", "drain")
    assert (status, body["error"]["message"]) == (502, "The worker was not told to drain: no")
    await stub.stop()
    status, body = await tell(cluster, "d1", "drain")
    assert (status, body["error"]["code"]) == (502, "worker_unreachable")
    d1.report(WorkerLoad(), 1.0)
    row = await view(cluster, d1)
    assert (row["draining"], row["left_out"], row["takes_work"]) == (True, True, False)
    assert (await tell(cluster, "d1", "resume"))[0] == 502
    assert (await view(cluster, d1))["left_out"], "as it was"


async def test_a_worker_that_leaves_is_not_resumed(cluster: Cluster) -> None:
    stub, _, _ = await three(cluster)
    stub.told_status = 409
    status, body = await tell(cluster, "d1", "resume")
    assert (status, body["error"]["code"]) == (409, "worker_leaving")


async def test_an_unknown_worker_is_neither_drained_nor_resumed(cluster: Cluster) -> None:
    for what in ("drain", "resume"):
        status, body = await tell(cluster, "nobody", what)
        assert (status, body["error"]["code"]) == (404, "worker_not_found")


async def test_a_static_worker_is_drained_without_being_told(cluster: Cluster) -> None:
    url = "http://127.0.0.1:9"
    (worker,) = cluster.pool.add_static([], [url])
    for address in (url, "http:%2F%2F127.0.0.1:9"):
        assert await tell(cluster, address, "drain") == (
            200,
            {"id": url, "draining": True, "told": False, "unreachable_routers": []},
        )
        assert worker.standing.left_out
        assert (await tell(cluster, address, "resume"))[0] == 200
        assert not worker.standing.left_out


async def test_the_announcements_of_a_drained_worker_count_from_then_on(cluster: Cluster) -> None:
    """Another router may resume it."""
    _, d1, _ = await three(cluster)
    await tell(cluster, "d1", "drain")
    d1.report(WorkerLoad(), 1.0)
    assert not d1.takes_work, "said before it was told"
    d1.report(WorkerLoad(draining=True), 2.0)
    assert not d1.takes_work
    d1.report(WorkerLoad(), 3.0)
    assert d1.takes_work


async def test_a_worker_that_drained_already_takes_work_when_it_announces_so(cluster: Cluster) -> None:
    _, d1, _ = await three(cluster)
    d1.report(WorkerLoad(draining=True), 1.0)
    await tell(cluster, "d1", "drain")
    d1.report(WorkerLoad(), 2.0)
    assert d1.takes_work
