"""``/ready``: not before a P is up, and not lost again with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerStatus
from baton_serve.router.build import build_router
from baton_serve.router.pool import WorkerPool
from baton_serve.router.pool.missing import MissingWorkers
from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.pool.readiness import Readiness, ReadyStatus
from baton_serve.router.settings import RouterSettings
from tests.kits.registry import worker as registered
from tests.kits.router.cluster import Cluster, DirectLeases, chat, eventually, make_settings

WAIT_S = 100.0


def status(name: str, digest: str = "same", *, draining: bool = False) -> WorkerStatus:
    """A worker whose role is the beginning of its name."""
    role = next(role for role in Role if name.startswith(role))
    load = WorkerLoad(draining=draining)
    return registered(
        name, load=load, role=role, model="m", url=f"http://{name}", internal_url="", compatibility_hash=digest
    )


class Deployment:
    """A router's readiness, and the workers that the registry tells it of."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self.now_s = 1000.0
        self.pool = WorkerPool(8)
        self.readiness = Readiness(self.pool, wait_s, lambda: self.now_s)

    def has(self, *statuses: WorkerStatus) -> ReadyStatus:
        """What it says while these are there."""
        self.pool.apply(statuses)
        return self.readiness.state()


P, D, BOTH = status("prefill-0"), status("decode-0"), status("both-0")


@pytest.mark.parametrize("first", [P, D])
async def test_workers_come_in_any_order(first: WorkerStatus) -> None:
    deployment = Deployment()
    assert deployment.has() == ReadyStatus.NO_WORKERS
    assert deployment.has(first) == (ReadyStatus.NO_PREFILL if first is D else ReadyStatus.NO_WORKERS)
    assert deployment.has(P, D) == ReadyStatus.OK


async def test_a_worker_that_does_both_is_a_deployment() -> None:
    assert Deployment().has(BOTH) == ReadyStatus.OK
    assert Deployment().has(BOTH, D) == ReadyStatus.OK
    assert Deployment().has(status("both-0", draining=True)) == ReadyStatus.NO_WORKERS


@pytest.mark.parametrize(
    "together",
    [
        [status("prefill-0", "other"), D],
        [status("prefill-0", draining=True), D],
        [P, status("prefill-1", "other"), status("decode-0", "other", draining=True), D, status("decode-1", "none")],
    ],
    ids=["another kind", "leaving", "several kinds"],
)
async def test_a_p_that_nobody_reads_from_does_not_count(together: list[WorkerStatus]) -> None:
    pair = len(together) > 2
    assert (Deployment().has(*together) == ReadyStatus.OK) == pair


async def test_a_deployment_stays_ready_when_its_only_p_dies() -> None:
    deployment = Deployment()
    deployment.has(P, D)
    (p,) = (worker for worker in deployment.pool if worker.role is Role.PREFILL)
    deployment.pool.unreachable(p)
    assert deployment.readiness.state() == ReadyStatus.OK, "it is still in the registry"
    assert deployment.has(D) == ReadyStatus.OK
    assert deployment.has(status("prefill-1", draining=True), D) == ReadyStatus.OK
    assert deployment.has(status("prefill-1")) == ReadyStatus.NO_WORKERS, "that is no matter of P"
    assert deployment.has(status("decode-1")) == ReadyStatus.OK


async def test_a_p_counts_that_came_and_went_while_nobody_asked() -> None:
    deployment = Deployment()
    deployment.pool.apply([P, D])
    deployment.pool.apply([D])
    assert deployment.readiness.state() == ReadyStatus.OK


async def test_the_wait_for_a_p_has_an_end() -> None:
    deployment = Deployment()
    assert deployment.has(D) == ReadyStatus.NO_PREFILL
    deployment.now_s += WAIT_S
    assert deployment.readiness.state() == ReadyStatus.OK
    assert deployment.has() == ReadyStatus.NO_WORKERS
    assert Deployment(wait_s=0).has(D) == ReadyStatus.OK


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"prefill": ["http://d"]}, ReadyStatus.OK),
        ({"prefill": ["http://p"]}, ReadyStatus.NO_PREFILL),
        ({}, ReadyStatus.NO_PREFILL),
    ],
    ids=["it does both", "P has not answered yet", "none is named"],
)
async def test_a_router_waits_for_a_p_also_where_its_workers_are_named(
    given: dict[str, Any], state: ReadyStatus
) -> None:
    settings = make_settings(decode=["http://d"], **given)
    workers = build_router(settings, DirectLeases(MemoryLeaseStore())).workers
    workers.pool.add_static(settings.prefill, settings.decode)
    for worker in workers.pool:
        worker.standing.healthy = worker.url == "http://d"
    (d,) = (worker for worker in workers.pool if worker.standing.healthy)
    workers.pool.learn_models(d, {"m": ModelFacts()})
    assert workers.readiness.state() == state
    await workers.upstream.close()


async def test_a_load_balancer_sees_a_router_ready_once_a_pair_is_up(cluster: Cluster) -> None:
    """A D is up, then a P, whose death then costs it nothing."""

    async def ready() -> tuple[int, str]:
        answer = await cluster.client.get("/ready")
        return answer.status_code, answer.json()["status"]

    assert await ready() == (503, "no_workers")
    await cluster.add("decode")
    assert await ready() == (503, "no_prefill_worker")
    p = await cluster.add("prefill")
    assert await ready() == (200, "ok")
    await p.stop()
    assert (await cluster.post(chat())).status_code == 200
    await eventually(lambda: any(not worker.standing.healthy for worker in cluster.pool))
    assert await ready() == (200, "ok")
    cluster.check_idle()


class TestMissing:
    """``baton up`` has a worker that never came, of which the registry knows nothing."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "missing.json"

    @pytest.fixture
    def settings(self, path: Path) -> RouterSettings:
        return make_settings(missing_file=path)

    async def told(self, cluster: Cluster) -> list[str] | None:
        answers = [(await cluster.client.get(path)).json()["missing_workers"] for path in ("/health", "/ready")]
        assert answers[0] == answers[1]
        names: list[str] | None = answers[0]
        return names

    async def test_the_name_of_a_missing_worker_is_told(self, cluster: Cluster, path: Path) -> None:
        for names in ([], ["decode-2"], ["decode-3"], []):
            path.with_suffix(".new").write_text(json.dumps(names))
            path.with_suffix(".new").replace(path)
            assert await self.told(cluster) == names

    @pytest.mark.parametrize("text", ['["decode-', "", None], ids=["cut", "empty", "none"])
    async def test_a_file_that_cannot_be_read_does_not_mean_that_none_is_missing(
        self, cluster: Cluster, path: Path, text: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        if text is not None:
            write(path, text)
        assert await self.told(cluster) is None
        assert [
            record.getMessage().partition(":")[0] for record in caplog.records if record.levelname == "WARNING"
        ] == ["which workers are missing is not known"]

    def test_a_file_that_has_not_changed_is_not_read_again(self, path: Path) -> None:
        missing = MissingWorkers(path)
        write(path, '["decode-2"]')
        assert missing.names() == ["decode-2"]
        before = path.stat()
        write(path, '["decode-3"]')
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert missing.names() == ["decode-2"]


def write(path: Path, text: str) -> None:
    path.write_text(text)
