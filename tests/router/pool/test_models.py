"""Several models behind one router, and workers of one model that cannot read from each other."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.router.cluster import Cluster, chat, eventually, spoken
from tests.kits.router.stub_workers import StubWorker, word

WHOLE = "".join(map(word, range(4)))


async def pair(cluster: Cluster, model: str, digest: str, limit: int = 8) -> tuple[StubWorker, StubWorker]:
    """A P and a D that can read from each other."""
    return (
        await cluster.add("prefill", model=model, digest=digest),
        await cluster.add("decode", model=model, digest=digest, limit=limit),
    )


def num_asked(*workers: StubWorker) -> list[int]:
    return [len(worker.bodies) for worker in workers]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("digests", [("x", "y"), ("x", "x")])
async def test_each_model_has_its_own_workers(cluster: Cluster, stream: bool, digests: tuple[str, str]) -> None:
    """Also if the hashes were equal: what a worker does not serve it is not asked."""
    a, b = await pair(cluster, "a", digests[0]), await pair(cluster, "b", digests[1])
    for model, count in (("a", 3), ("b", 2)):
        for _ in range(count):
            response = await cluster.post(chat(model=model, stream=stream))
            assert response.status_code == 200
            assert not stream or spoken(response.text) == WHOLE
    assert num_asked(*a, *b) == [3, 3, 2, 2]
    assert {body["model"] for worker in b for body in worker.bodies} == {"b"}
    assert [one["id"] for one in (await cluster.client.get("/v1/models")).json()["data"]] == ["a", "b"]
    cluster.check_idle()


async def test_a_model_whose_workers_do_not_fit_together_is_unavailable(cluster: Cluster) -> None:
    a = await pair(cluster, "a", "x")
    p, d = await cluster.add("prefill", model="b", digest="y"), await cluster.add("decode", model="b", digest="z")
    response = await cluster.post(chat(model="b"))
    assert (response.status_code, "differ" in response.json()["error"]["message"]) == (503, True)
    assert (await cluster.post(chat(model="a"))).status_code == 200
    assert num_asked(*a, p, d) == [1, 1, 0, 0]


async def test_a_d_reads_only_from_a_p_whose_blocks_it_can_read(cluster: Cluster) -> None:
    """One model in two layouts, as while it is being replaced."""
    old, new = await pair(cluster, "m", "old"), await pair(cluster, "m", "new")
    for _ in range(8):
        assert (await cluster.post(chat())).status_code == 200
    assert num_asked(*old, *new) == [4, 4, 4, 4]
    for p, d in (old, new):
        assert {body["kv_transfer_params"]["remote_engine_id"] for body in d.bodies} == {p.engine_id}
    cluster.check_idle()


async def test_blocks_wait_for_a_d_that_can_read_them(cluster: Cluster) -> None:
    """The other D is idle, but has another layout."""
    (p, d), (other_p, other_d) = await pair(cluster, "m", "old", limit=1), await pair(cluster, "m", "new")
    for one in cluster.pool:
        one.standing.left_out = one.worker_id == other_p.name
    hang = d.hangs()
    asked = [asyncio.create_task(cluster.post(chat())) for _ in range(2)]
    await cluster.until_state("held")
    await eventually(lambda: num_asked(p, d) == [2, 1])
    assert num_asked(other_d) == [0]
    hang.release.set()
    assert [(await one).status_code for one in asked] == [200, 200]
    assert num_asked(p, d, other_d) == [2, 2, 0]
    cluster.check_idle()


@pytest.mark.parametrize("gone", ["left", "unreachable", "drains"])
async def test_prompts_are_computed_again_when_the_last_d_of_their_layout_goes(cluster: Cluster, gone: str) -> None:
    """Nobody else can read them: the prompt is computed again where it can be, at once."""
    old_p, old_d = await pair(cluster, "m", "old", limit=1)
    hang = old_d.hangs()
    asked = [asyncio.create_task(cluster.post(chat())) for _ in range(3)]
    await cluster.until_state("held", 2)
    new_p, new_d = await pair(cluster, "m", "new")
    (seen,) = [one for one in cluster.pool if one.worker_id == old_d.name]
    if gone == "left":
        cluster.workers.remove(old_d)
        cluster.announce()
    elif gone == "unreachable":
        cluster.pool.unreachable(seen)
    else:
        cluster.pool.leave_out(seen)
    await eventually(lambda: num_asked(new_p, new_d) == [2, 2])
    hang.release.set()
    assert [(await one).status_code for one in asked] == [200] * 3
    assert num_asked(old_p, old_d) == [3, 1]
    if gone == "left":
        cluster.workers.append(old_d)  # to be closed
    cluster.check_idle()


async def test_a_busy_model_does_not_hold_up_another(cluster: Cluster) -> None:
    (_, d), b = await pair(cluster, "a", "x", limit=1), await pair(cluster, "b", "y")
    hang = d.hangs()
    asked = [asyncio.create_task(cluster.post(chat(model="a", priority=-9))) for _ in range(3)]
    await cluster.until_state("held", 2)
    assert (await cluster.post(chat(model="b", priority=9))).status_code == 200
    assert num_asked(*b) == [1, 1]
    hang.release.set()
    assert [(await one).status_code for one in asked] == [200] * 3
    cluster.check_idle()


@pytest.mark.settings(min_prefill_tokens=100)
async def test_a_request_that_skips_p_goes_to_a_d_of_its_model(cluster: Cluster) -> None:
    a, b = await pair(cluster, "a", "x"), await pair(cluster, "b", "x")
    for _ in range(3):
        assert (await cluster.post(chat(model="b"))).status_code == 200
    assert num_asked(*a, *b) == [0, 0, 0, 3]
    cluster.check_idle()
