"""The workers of the pool: their room, their load, and which P and D may be paired."""

from __future__ import annotations

from typing import Any

import pytest

from core.protocol.errors import NotFoundError, UnavailableError
from core.protocol.worker import Role, WorkerLoad, WorkerRecord, WorkerStatus
from router.pool import LOAD_TTL_S, Worker, WorkerPool
from router.pool.model_card import ModelFacts


def worker(name: str = "w", role: Role = Role.DECODE, **kwargs: Any) -> Worker:
    return Worker(worker_id=name, url="http://x", role=role, limit=kwargs.pop("limit", 4), **kwargs)


def test_room_counts_what_others_sent_and_what_we_did_since() -> None:
    one = worker(limit=10)
    one.in_flight = 2
    one.report(WorkerLoad(running=5, waiting=1, reading=1), 0.0)
    assert one.occupied == 7
    one.in_flight = 4
    assert one.occupied == 9
    one.in_flight = 0
    assert (one.occupied, one.room) == (5, 5)


def status(load: WorkerLoad, tp: int = 1) -> WorkerStatus:
    record = WorkerRecord(
        worker_id="w",
        engine_id="e",
        role=Role.DECODE,
        model="m",
        url="http://x",
        internal_url="",
        compatibility_hash="",
        max_model_len=9,
        block_size=1,
        num_blocks=9,
        max_num_seqs=4,
        tp=tp,
    )
    return WorkerStatus(record=record, load=load)


async def test_a_worker_has_as_many_ranks_as_it_says() -> None:
    pool = WorkerPool(4)
    pool.apply([status(WorkerLoad(), tp=2)])
    assert [worker.tp for worker in pool] == [2]


async def test_a_load_that_is_not_heard_again_counts_for_a_while_only() -> None:
    now_s = 100.0
    woken: list[int] = []
    pool = WorkerPool(4, clock=lambda: now_s)
    full = status(WorkerLoad(running=4))
    pool.apply([full])
    (one,) = pool
    pool.on_room.append(lambda: woken.append(one.room))
    now_s += LOAD_TTL_S - 0.1
    assert not pool.forget_old_loads()
    assert one.room == 0
    pool.apply([full])  # because of another worker: nothing new about this one
    now_s += 0.2
    assert pool.forget_old_loads()
    assert (one.room, woken[-1]) == (4, 4), "who waits is told"
    pool.enter(one)
    assert one.room == 3
    pool.apply([status(WorkerLoad(running=4, draining=True))])
    assert one.room == 0
    now_s += LOAD_TTL_S
    pool.forget_old_loads()
    assert (one.room, one.takes_work) == (3, False), "leaving is for good"


async def test_what_the_list_repeats_is_not_corrected_again() -> None:
    pool = WorkerPool(4)
    full = status(WorkerLoad(running=2))
    pool.apply([full])
    (one,) = pool
    pool.enter(one)
    pool.apply([full])
    assert one.occupied == 3, "two that were reported, one sent since"


def test_routes_pair_what_can_be_paired() -> None:
    pool = WorkerPool(4)
    with pytest.raises(UnavailableError):
        pool.route("m")
    static = pool.add_static(["http://p1", "http://p2", "http://b"], ["http://d1", "http://b"])
    p1, p2, both, d1 = static
    assert both.role is Role.BOTH
    for one, digest in [(p1, "x"), (p2, "y"), (both, "z"), (d1, "x")]:
        one.compatibility_hash = digest
        pool.learn_models(one, {"m": ModelFacts()})
    route = pool.route("m")
    assert (route.prefill, route.single) == ((p1,), False)
    assert route.readers(p1) == (d1,)
    with pytest.raises(NotFoundError):
        pool.route("other")
    assert pool.models() == ["m"]
