"""The limit on leased blocks: the count, and prompts that wait because of it."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.protocol.worker import WorkerLoad, WorkerStatus
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.queue.lease_limit import LeaseLimit
from tests.kits.registry import worker as registered
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Hang

BLOCK = 16


def status(leased: int, engine_id: str = "e", num_blocks: int = 10) -> WorkerStatus:
    load = WorkerLoad(leased_blocks=leased)
    return registered(
        "w", load=load, engine_id=engine_id, num_blocks=num_blocks, block_size=BLOCK, compatibility_hash=""
    )


def made(leased: int) -> tuple[WorkerPool, LeaseLimit, Worker]:
    pool = WorkerPool(4)
    blocks = LeaseLimit(0.5, pool)
    pool.apply([status(leased)])
    (worker,) = pool
    return pool, blocks, worker


async def test_the_reported_count_is_corrected_by_what_happened_since() -> None:
    pool, blocks, worker = made(leased=3)
    blocks.hold("a", worker, 2 * BLOCK)
    blocks.hold("b", worker, 1)
    assert blocks.count(worker) == 6
    pool.apply([status(leased=8)])
    assert blocks.count(worker) == 8, "ours are in it now"
    blocks.end("a")
    blocks.end("a")
    assert blocks.count(worker) == 6
    blocks.end("b")
    assert (blocks.count(worker), len(blocks)) == (5, 0)


async def test_an_end_right_after_a_report_counts_although_nobody_asked_in_between() -> None:
    pool, blocks, worker = made(leased=0)
    blocks.hold("a", worker, 4 * BLOCK)
    pool.apply([status(leased=4)])
    blocks.end("a")
    assert blocks.count(worker) == 0


async def test_only_our_own_leases_count_without_fresh_reports() -> None:
    _pool, blocks, worker = made(leased=9)
    blocks.hold("a", worker, BLOCK)
    worker.forget_report()
    assert (blocks.count(worker), blocks.allows(worker)) == (1, True)


@pytest.mark.parametrize(("leased", "allowed"), [(5, True), (6, False)])
async def test_more_leased_blocks_than_the_share_are_too_many(leased: int, allowed: bool) -> None:
    _pool, blocks, worker = made(leased)
    assert blocks.allows(worker) is allowed


async def test_a_prompt_that_waits_is_woken_when_it_is_allowed_again() -> None:
    pool, blocks, worker = made(leased=4)
    for lease_id in "abc":
        blocks.hold(lease_id, worker, BLOCK)
    woken: list[int] = []
    pool.on_room.append(lambda: woken.append(blocks.count(worker)))
    blocks.end("a")
    assert woken == []
    blocks.end("b")
    assert woken == [5]
    blocks.end("c")
    assert woken == [5], "nobody waited for that"


async def test_an_engine_that_went_takes_its_leases_along() -> None:
    pool, blocks, worker = made(leased=0)
    blocks.hold("a", worker, 9 * BLOCK)
    pool.apply([status(0, engine_id="e2")])
    (new,) = pool
    assert blocks.allows(new)
    blocks.hold("b", worker, 9 * BLOCK)  # P's answer came after it had left
    blocks.end("a")
    assert (blocks.count(worker), blocks.count(new), len(blocks)) == (0, 0, 0)


async def test_a_worker_that_does_not_say_how_large_it_is_may_always_be_sent_prompts() -> None:
    pool = WorkerPool(4)
    blocks = LeaseLimit(0.1, pool)
    (worker,) = pool.add_static(["http://x"], [])
    blocks.hold("a", worker, 9999)
    assert (blocks.allows(worker), len(blocks)) == (True, 0)


async def until_leased(cluster: Cluster, num: int) -> None:
    await eventually(lambda: len(cluster.leases.tracked) == num)


@pytest.mark.settings(max_leased_fraction=0.2)
class TestPrompts:
    """Prompts of one block; a prefill worker of ten, of which two may be leased."""

    async def test_prompts_wait_until_a_decode_worker_has_read(self, cluster: Cluster) -> None:
        p, d = await cluster.add("prefill"), await cluster.add("decode", limit=1)
        hang = d.hangs()
        asked = []
        for held in range(3):
            asked.append(asyncio.create_task(cluster.post(chat())))
            await until_leased(cluster, held + 1)
        asked += [asyncio.create_task(cluster.post(chat())) for _ in range(2)]
        await cluster.until_state("queued", 2)
        assert len(p.bodies) == 3
        hang.release.set()
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * 5
        assert len(p.bodies) == 5
        assert len(cluster.lease_limit) == 0
        cluster.check_idle()

    async def test_prompts_wait_until_a_report_says_there_is_room(self, cluster: Cluster) -> None:
        p, _ = await cluster.fleet("prefill", "decode")
        cluster.announce(p0=WorkerLoad(leased_blocks=3))
        asked = asyncio.create_task(cluster.post(chat()))
        await cluster.until_state("queued")
        assert p.bodies == []
        metrics = cluster.metrics
        assert (metrics.num_lease_limit_waits, metrics.lease_limit_wait_s) == (1, 0.0)
        cluster.announce()
        assert (await asked).status_code == 200
        assert metrics.lease_limit_wait_s > 0
        assert (await cluster.post(chat())).status_code == 200
        text = (await cluster.client.get("/metrics")).text
        assert "baton_router_held_back_total 1.0" in text
        assert f"baton_router_held_back_seconds_total {metrics.lease_limit_wait_s}" in text
        cluster.check_idle()

    async def test_prompts_go_to_a_worker_that_has_room(self, cluster: Cluster) -> None:
        full, free, _ = await cluster.fleet("prefill", "prefill", "decode")
        cluster.announce(p0=WorkerLoad(leased_blocks=3))
        for _ in range(3):
            assert (await cluster.post(chat())).status_code == 200
        assert (len(full.bodies), len(free.bodies)) == (0, 3)

    async def test_a_client_that_leaves_gives_back_its_share(self, cluster: Cluster) -> None:
        await cluster.add("prefill")
        await cluster.add("decode", limit=1)
        cluster.workers[1].script.append(Hang())
        writers = []
        for held in range(3):
            writers.append(await cluster.open(chat(stream=True)))
            await until_leased(cluster, held + 1)
        waiting = await cluster.open(chat(stream=True))
        await cluster.until_state("queued")
        writers[2].close()
        await cluster.until_state("queued", 0)
        await cluster.until_state("held", 2)
        for writer in (*writers[:2], waiting):
            writer.close()
        await eventually(lambda: len(cluster.active) == 0)
        assert len(cluster.lease_limit) == 0
