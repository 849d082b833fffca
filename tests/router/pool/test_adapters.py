"""Adapters of workers: models by name, each computed, read and continued only where there is the same one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from baton_serve.core.protocol.errors import NotFoundError, UnavailableError
from baton_serve.core.protocol.worker import AdapterRecord, Role, WorkerStatus
from baton_serve.router.placement.prompt import Prompt
from baton_serve.router.pool import WorkerPool
from baton_serve.router.pool.candidates import Candidates
from tests.kits.registry import worker as registered
from tests.kits.router.cluster import Cluster, chat, eventually, spoken
from tests.kits.router.stub_workers import StreamThen, StubWorker, word

NUM_TOKENS = 8
WHOLE = "".join(map(word, range(NUM_TOKENS)))
FIRST, SECOND = {"tuned": "f1"}, {"tuned": "f2"}


def status(name: str, role: Role, adapters: dict[str, str], model: str = "m", **more: Any) -> WorkerStatus:
    records = tuple(AdapterRecord(name=one, root=f"/{one}", fingerprint=fp) for one, fp in adapters.items())
    about = {"root": "/models/m", "max_model_len": 9, "weights_fingerprint": "w", **more}
    return registered(name, role=role, model=model, url=f"http://{name}", internal_url="", adapters=records, **about)


async def pool_of(*statuses: WorkerStatus) -> WorkerPool:
    pool = WorkerPool(4)
    pool.apply(statuses)
    return pool


def names(workers: Candidates) -> set[str]:
    return {worker.worker_id for worker in workers}


async def test_an_adapter_is_a_model_with_a_parent() -> None:
    pool = await pool_of(status("p", Role.PREFILL, FIRST), status("d", Role.DECODE, FIRST))
    assert pool.models() == ["m", "tuned"]
    assert (pool.facts("tuned").root, pool.facts("tuned").parent) == ("/tuned", "m")
    assert (pool.facts("m").root, pool.facts("m").parent) == ("/models/m", "")
    assert pool.facts("tuned").max_model_len == 9
    with pytest.raises(NotFoundError):
        pool.route("other")


async def test_models_are_listed_before_adapters() -> None:
    pool = await pool_of(status("p", Role.BOTH, {"adapter": "x", "z": "y"}), status("q", Role.BOTH, {}, model="n"))
    assert pool.models() == ["m", "n", "adapter", "z"]


async def test_p_and_d_need_the_same_adapter_under_the_name() -> None:
    pool = await pool_of(
        status("p1", Role.PREFILL, FIRST),
        status("p2", Role.PREFILL, SECOND),
        status("d1", Role.DECODE, FIRST),
        status("d2", Role.DECODE, SECOND),
        status("d0", Role.DECODE, {}),
    )
    route = pool.route("tuned")
    assert (names(route.prefill), names(route.decode)) == ({"p1", "p2"}, {"d1", "d2"})
    assert {source.worker_id: names(route.readers(source)) for source in route.prefill} == {"p1": {"d1"}, "p2": {"d2"}}
    own = pool.route("m")
    assert {names(own.readers(source)) == {"d0", "d1", "d2"} for source in own.prefill} == {True}


async def test_a_name_without_a_pair_says_why() -> None:
    pool = await pool_of(status("p", Role.PREFILL, FIRST), status("d", Role.DECODE, SECOND))
    with pytest.raises(UnavailableError, match="they differ in what is behind the name of the model: another adapter"):
        pool.route("tuned")
    assert names(pool.route("m").decode) == {"d"}
    pool.apply([status("p", Role.PREFILL, FIRST), status("e", Role.DECODE, {})])
    with pytest.raises(UnavailableError, match="No decode worker is known that serves this model"):
        pool.route("tuned")


async def test_only_the_same_adapter_on_the_same_weights_goes_on() -> None:
    pool = await pool_of(
        status("d1", Role.BOTH, FIRST),
        status("d2", Role.BOTH, SECOND),
        status("d3", Role.BOTH, FIRST, weights_fingerprint="v"),
        status("d4", Role.BOTH, {"again": "f1"}),
        status("d5", Role.BOTH, FIRST, compatibility_hash="other layout"),
    )
    first = next(worker for worker in pool if worker.worker_id == "d1")
    route = pool.route("tuned").continuing(first.weights_of("tuned"))
    assert route is not None and names(route.decode) == {"d1", "d5"}
    own = pool.route("m").continuing(first.weights_of("m"))
    assert own is not None and names(own.decode) == {"d1", "d2", "d4", "d5"}


async def test_an_adapter_is_not_taken_for_a_model_of_the_same_name() -> None:
    pool = await pool_of(status("p", Role.PREFILL, {"x": "f1"}), status("d", Role.DECODE, {}, model="x"))
    with pytest.raises(UnavailableError, match="another adapter"):
        pool.route("x")
    (own,) = [one for one in pool if one.worker_id == "p"]
    pool.apply([status("q", Role.PREFILL, {"m": "f1"})])
    (own,) = pool
    assert (own.models, own.adapter_of("m")) == (("m",), ""), "the model itself has the name"


def test_prompts_of_two_models_have_no_beginning_in_common() -> None:
    text = b"x" * 4096
    own, adapter = (Prompt(model, 4096, lambda: text) for model in ("m", "tuned"))
    assert len(own.chunks) == len(adapter.chunks) > 2
    assert not set(own.chunks) & set(adapter.chunks)


# --- whole requests ---------------------------------------------------------------------------------------------------


def num_asked(*workers: StubWorker) -> list[int]:
    return [len(worker.bodies) for worker in workers]


async def test_requests_go_where_the_adapter_is(cluster: Cluster) -> None:
    p, d1, d2 = [
        await cluster.add("prefill", adapters=FIRST),
        await cluster.add("decode", adapters=FIRST),
        await cluster.add("decode", adapters=SECOND),
    ]
    for _ in range(4):
        assert (await cluster.post(chat(model="tuned"))).status_code == 200
    assert num_asked(p, d1, d2) == [4, 4, 0]
    assert {body["model"] for worker in (p, d1) for body in worker.bodies} == {"tuned"}
    for _ in range(4):
        assert (await cluster.post(chat())).status_code == 200
    assert num_asked(p, d1, d2) == [8, 6, 2]
    cluster.check_idle()


async def test_openai_lists_adapters_with_root_and_parent(cluster: Cluster) -> None:
    await cluster.add("prefill", adapters=FIRST)
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        cards = {model.id: model for model in (await client.models.list()).data}
        assert set(cards) == {"m", "tuned"}
        tuned: Any = await client.models.retrieve("tuned")
    assert (tuned.root, tuned.parent, tuned.owned_by) == ("/adapters/tuned", "m", "baton")
    assert (tuned.model_dump()["parent"], cards["m"].model_dump()["parent"]) == ("m", None)


async def test_a_stream_goes_on_with_the_same_adapter_only(cluster: Cluster) -> None:
    p = await cluster.add("prefill", adapters=FIRST)
    d = await cluster.add("decode", adapters=FIRST)
    other = await cluster.add("decode", adapters=SECOND)
    act = StreamThen(2, "die")
    d.script.append(act)
    request = asyncio.create_task(cluster.post(chat(model="tuned", stream=True, max_tokens=NUM_TOKENS)))
    await cluster.until_state("decoding")
    same = await cluster.add("decode", adapters=FIRST)
    seen = {one.worker_id: one for one in cluster.pool}
    for one in (d, same):
        cluster.pool.leave_out(seen[one.name])
    act.go.set()
    await cluster.until_state("held")
    assert num_asked(d, other) == [1, 0]
    cluster.pool.take_back(seen[same.name])
    assert spoken((await request).text) == WHOLE
    assert num_asked(p, d, other, same) == [2, 1, 0, 1]
    assert p.bodies[1]["kv_transfer_params"]["resume"]["adapter"] == "f1", "P may be another one by now"
    cluster.check_idle()


async def test_blocks_wait_for_a_d_with_the_adapter(cluster: Cluster) -> None:
    """The other D is idle, but has another adapter under the name."""
    p, d = await cluster.add("prefill", adapters=FIRST), await cluster.add("decode", adapters=FIRST, limit=1)
    other = await cluster.add("decode", adapters=SECOND)
    hang = d.hangs()
    asked = [asyncio.create_task(cluster.post(chat(model="tuned"))) for _ in range(2)]
    await cluster.until_state("held")
    await eventually(lambda: num_asked(p, d) == [2, 1])
    hang.release.set()
    assert [(await one).status_code for one in asked] == [200, 200]
    assert num_asked(p, d, other) == [2, 2, 0]
    cluster.check_idle()
