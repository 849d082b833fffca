"""Workers that left without saying so, and those that only seem to have."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerStatus
from baton_serve.core.protocol.worker_address import worker_address
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.pool.lost import KEEP_S, MAX_LOST, LostWorkers
from tests.kits.registry import worker as announced
from tests.kits.router.workers import new_worker


class Deployment:
    """A pool, and what is lost from it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.counted: Counter[str] = Counter()
        self.pool = WorkerPool(4)
        self.lost = LostWorkers(self.counted, lambda: self.now_s)
        self.pool.on_left.append(self.lost.left)
        self.pool.on_came.append(lambda: self.lost.came(self.pool))

    def ids(self) -> list[str]:
        return [one.id for one in self.lost.all()]


def status(worker_id: str = "w", load: WorkerLoad | None = None, **fields: Any) -> WorkerStatus:
    return announced(worker_id, load=load, **fields)


def one(name: str = "w", **fields: Any) -> Worker:
    return new_worker(**{"worker_id": name, "url": f"http://{name}", "role": Role.DECODE, "limit": 4, **fields})


async def test_a_worker_that_stops_announcing_stays_listed_with_what_it_had(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Deployment()
    cluster.pool.apply([status(load=WorkerLoad(running=3, leased_blocks=7), role=Role.PREFILL)])
    (worker,) = cluster.pool
    cluster.pool.enter(worker)
    with caplog.at_level(logging.WARNING, "baton.router"):
        cluster.pool.apply([])
    (lost,) = cluster.lost.all()
    assert (lost.id, lost.url, lost.role, lost.models) == ("w", worker.url, "prefill", worker.models)
    assert (lost.in_flight, lost.running, lost.leased_blocks, lost.gone_at) == (1, 3, 7, 1000.0)
    assert cluster.counted == {"prefill": 1}
    assert [r.getMessage() for r in caplog.records] == [
        f"worker w (prefill, {worker.url}) left without draining, with 1 requests and 7 leased blocks"
    ]


@pytest.mark.parametrize("draining", [True, False])
async def test_the_last_announcement_of_a_worker_tells_leaving_from_failing(draining: bool) -> None:
    """The list in which it drains may never come: it withdraws too soon after."""
    cluster = Deployment()
    cluster.pool.apply([status()])
    cluster.pool.withdrew(status(load=WorkerLoad(draining=draining)))
    cluster.pool.apply([])
    assert cluster.ids() == ([] if draining else ["w"])


async def test_a_worker_that_drained_is_not_lost() -> None:
    cluster = Deployment()
    cluster.pool.apply([status("a", WorkerLoad(draining=True)), status("b")])
    cluster.pool.told_left_out("b", True)
    cluster.pool.apply([])
    assert cluster.ids() == []
    assert not cluster.counted


async def test_a_worker_that_people_delete_is_not_lost() -> None:
    cluster = Deployment()
    (worker,) = cluster.pool.add_addresses({worker_address("10.0.0.1:80"): Role.BOTH})
    cluster.pool.forget_address(worker.worker_id)
    assert cluster.ids() == []


@pytest.mark.parametrize(("name", "url"), [("w", "http://elsewhere:1"), ("another", "http://here:1")])
async def test_the_entry_of_a_lost_worker_ends_when_it_or_a_successor_comes(name: str, url: str) -> None:
    cluster = Deployment()
    cluster.pool.apply([status(url="http://here:1")])
    cluster.pool.apply([])
    cluster.pool.apply([status("third", url="http://third:1")])
    assert cluster.ids() == ["w"]
    cluster.pool.apply([status("third", url="http://third:1"), status(name, url=url)])
    assert cluster.ids() == []
    assert cluster.counted.total() == 1


async def test_the_entry_of_a_lost_worker_ends_when_baton_up_starts_it_again_elsewhere() -> None:
    cluster = Deployment()
    old = status("old", url="http://here:1", name="decode-1")
    elsewhere, new = (
        status("new", url="http://there:2", name="decode-1"),
        status("newer", url="http://here:3", name="decode-1"),
    )
    cluster.pool.apply([old])
    cluster.pool.apply([])
    cluster.pool.apply([elsewhere])
    assert [(lost.id, lost.name) for lost in cluster.lost.all()] == [("old", "decode-1")]
    cluster.pool.apply([elsewhere, new])
    assert cluster.ids() == []


def test_the_entry_of_a_lost_worker_ends_by_itself_or_by_order() -> None:
    cluster = Deployment()
    cluster.lost.left(one("a"))
    cluster.now_s += KEEP_S / 2
    cluster.lost.left(one("b"))
    cluster.now_s += KEEP_S / 2
    assert cluster.ids() == ["b"]
    assert cluster.lost.forget("b") is not None
    assert cluster.ids() == []
    assert cluster.lost.forget("b") is None


def test_the_number_of_lost_workers_is_bounded() -> None:
    cluster = Deployment()
    for number in range(MAX_LOST + 2):
        cluster.lost.left(one(str(number)))
    assert cluster.ids() == [str(number) for number in range(2, MAX_LOST + 2)]
    assert cluster.counted.total() == MAX_LOST + 2
