"""What is asked of one router is answered for all of them: three processes on one Redis."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from baton_serve.core.protocol.ids import short
from baton_serve.core.protocol.request_ids import new_request_id, owner_of
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import chat, eventually
from tests.kits.router.process import Announced, RouterProcess, until_workers
from tests.kits.router.stub_workers import Hang


class Three:
    """Three routers that know each other, in the order of their ids; a P and a D."""

    def __init__(self, processes: list[RouterProcess], workers: Announced) -> None:
        self.processes = processes
        self.clients = [httpx.AsyncClient(base_url=process.url, timeout=PATIENCE_S) for process in processes]
        self.ids: list[str] = []
        self.workers = workers
        self._tasks: list[asyncio.Task[httpx.Response]] = []

    async def learn_ids(self) -> None:
        listings = [await self.until(i, "/admin/routers", _all_there) for i in range(3)]
        assert [{row["id"] for row in rows["routers"]} for rows in listings] == [
            {row["id"] for row in listings[0]["routers"]}
        ] * 3
        self.ids = [next(row["id"] for row in rows["routers"] if row["is_this"]) for rows in listings]

    async def get(self, index: int, path: str) -> Any:
        answer = await self.clients[index].get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, index: int, path: str, condition: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(found := await self.get(index, path)):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        return found

    async def start(self, index: int, model: str = "m") -> asyncio.Task[httpx.Response]:
        """A request that D has and does not answer."""
        before = len(self.workers.d.bodies)
        self.workers.d.script.append(Hang())
        task = asyncio.create_task(self.clients[index].post("/v1/chat/completions", json=chat(model=model)))
        self._tasks.append(task)
        await eventually(lambda: len(self.workers.d.bodies) > before)
        return task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self.clients:
            await client.aclose()
        for process in self.processes:
            if process.process.returncode is None:
                os.kill(process.process.pid, signal.SIGCONT)
            await process.stop()


def _all_there(listing: Any) -> bool:
    return len(listing["routers"]) == 3 and all(row["reachable"] for row in listing["routers"])


@asynccontextmanager
async def three(redis_url: str, workers: Announced, **settings: Any) -> AsyncIterator[Three]:
    processes = await asyncio.gather(*(RouterProcess().start(redis_url=redis_url, **settings) for _ in range(3)))
    made = Three(list(processes), workers)
    try:
        for process in processes:
            await until_workers(process.url, 2)
        await made.learn_ids()
        yield made
    finally:
        await made.close()


async def test_every_router_lists_and_aborts_the_requests_of_all(redis_url: str, announced: Announced) -> None:
    async with three(redis_url, announced) as routers:
        tasks = [await routers.start(i) for i in range(3)]
        for i in range(3):
            listing = await routers.get(i, "/admin/requests")
            ages_ms = [row["age_ms"] for row in listing["requests"]]
            assert ages_ms == sorted(ages_ms, reverse=True), "oldest first"
            assert {row["router"] for row in listing["requests"]} == set(routers.ids)
            assert all(owner_of(row["id"]) == row["router"] for row in listing["requests"])
            assert listing["unreachable_routers"] == []
        rows = sorted(listing["requests"], key=lambda row: routers.ids.index(row["router"]))
        leases = await routers.get(1, "/admin/leases")
        assert {lease["request_id"] for lease in leases["leases"]} == {row["id"] for row in rows}
        assert leases["unreachable_routers"] == []
        # The last one's, aborted through the first.
        aborted = await routers.clients[0].post(f"/admin/requests/{short(rows[2]['id'])}/abort")
        assert (aborted.status_code, aborted.json()) == (200, {"aborted": [rows[2]["id"]]})
        assert (await tasks[2]).status_code == 499
        again = await routers.clients[0].post(f"/admin/requests/{rows[2]['id']}/abort")
        assert (again.status_code, again.json()["error"]["code"]) == (404, "request_not_found")
        for unknown in (
            new_request_id(routers.ids[1]),
            "0" * 32,
            short(rows[2]["id"]),
            "x%2F..%2Fy",
            routers.ids[1] + "%2F..%2F..%2Fabort",
        ):
            answer = await routers.clients[0].post(f"/admin/requests/{unknown}/abort")
            assert answer.status_code == 404, unknown
        # All that are left, through a router that has none.
        answer = await routers.clients[2].post("/admin/abort", json={"all": True})
        assert sorted(answer.json()["aborted"]) == sorted(row["id"] for row in rows[:2])
        assert answer.json()["unreachable_routers"] == []
        assert [(await task).status_code for task in tasks[:2]] == [499, 499]
        assert (await routers.get(0, "/admin/requests"))["requests"] == []
        await eventually(lambda: announced.held() == [])


@pytest.mark.slow
async def test_an_abort_by_filter_holds_on_every_router(redis_url: str, announced: Announced) -> None:
    async with three(redis_url, announced) as routers:
        for i in range(2):
            await routers.start(i)
        for wanted, count in (({"model": "another"}, 0), ({"worker": "d", "state": "reading"}, 2)):
            answer = await routers.clients[2].post("/admin/abort", json=wanted)
            assert len(answer.json()["aborted"]) == count
        assert (await routers.clients[2].post("/admin/abort", json={})).status_code == 400


@pytest.mark.slow
async def test_a_router_that_does_not_answer_is_named(redis_url: str, announced: Announced) -> None:
    async with three(redis_url, announced) as routers:
        await routers.start(1)
        (row,) = (await routers.get(0, "/admin/requests"))["requests"]
        os.kill(routers.processes[1].process.pid, signal.SIGSTOP)
        asked = [routers.get(0, path) for path in ("/admin/requests", "/admin/leases", "/admin/routers")]
        abort = routers.clients[0].post(f"/admin/requests/{row['id']}/abort")
        requests, leases, listing, answer = await asyncio.gather(*asked, abort)
        assert requests == {"requests": [], "unreachable_routers": [routers.ids[1]]}
        assert leases["unreachable_routers"] == [routers.ids[1]]
        assert [row["id"] for row in listing["routers"] if not row["reachable"]] == [routers.ids[1]]
        assert answer.status_code == 502
        assert routers.ids[1] in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "router_unreachable"


@pytest.mark.slow
async def test_a_dead_router_is_not_asked_any_more(redis_url: str, announced: Announced) -> None:
    async with three(redis_url, announced) as routers:
        await routers.start(1)
        (row,) = (await routers.get(0, "/admin/requests"))["requests"]
        os.kill(routers.processes[1].process.pid, signal.SIGKILL)
        await routers.until(0, "/admin/routers", lambda listing: len(listing["routers"]) == 2)
        assert await routers.get(0, "/admin/requests") == {"requests": [], "unreachable_routers": []}
        assert (await routers.clients[0].post(f"/admin/requests/{row['id']}/abort")).status_code == 404


@pytest.mark.slow
async def test_a_worker_that_one_router_adds_is_known_to_all(redis_url: str, announced: Announced) -> None:
    """Added, drained, resumed and deleted through different routers; one that starts later learns it."""
    url = "http://127.0.0.1:9"
    async with three(redis_url, announced) as routers:
        added = await routers.clients[0].post("/admin/workers", json={"url": url, "role": "decode"})
        assert (added.status_code, added.json()["unreachable_routers"]) == (201, [])
        again = await routers.clients[1].post("/admin/workers", json={"url": url, "role": "decode"})
        assert again.json()["error"]["code"] == "worker_exists"
        drained = await routers.clients[1].post(f"/admin/workers/{url}/drain")
        assert (drained.json()["told"], drained.json()["unreachable_routers"]) == (False, [])
        assert [await left_out(client, url) for client in routers.clients] == [True] * 3
        late = await RouterProcess().start(redis_url=redis_url)
        async with httpx.AsyncClient(base_url=late.url, timeout=PATIENCE_S) as client, asyncio.timeout(PATIENCE_S):
            while await left_out(client, url) is not True:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        assert (await late.stop())[0] == 0
        await routers.clients[2].post(f"/admin/workers/{url}/resume")
        assert [await left_out(client, url) for client in routers.clients] == [False] * 3
        assert (await routers.clients[2].delete(f"/admin/workers/{url}")).json()["id"] == url
        assert [await left_out(client, url) for client in routers.clients] == [None] * 3


async def left_out(client: httpx.AsyncClient, url: str) -> bool | None:
    """Whether that router sends it nothing; None: it does not know it."""
    rows = (await client.get("/admin/workers")).json()["workers"]
    return next((bool(row["left_out"]) for row in rows if row["id"] == url), None)


@pytest.mark.slow
async def test_internal_paths_are_not_on_the_client_port(redis_url: str, announced: Announced) -> None:
    router = await RouterProcess().start(redis_url=redis_url, internal_token="s3cret-internal")
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for path in ("/internal/requests", "/internal/alive/" + "0" * 12, "/internal/keepers"):
            answer = await client.get(router.url + path, headers={"authorization": "Bearer s3cret-internal"})
            assert answer.status_code == 404
    assert (await router.stop())[0] == 0
