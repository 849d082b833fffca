"""The workers of the pool: their room, their load, and which P and D may be paired."""

from __future__ import annotations

import pytest

from baton_serve.core.protocol.errors import NotFoundError, UnavailableError
from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerStatus
from baton_serve.core.protocol.worker_address import worker_address
from baton_serve.router.pool import LOAD_TTL_S, Worker, WorkerPool
from baton_serve.router.pool.kind import PLAIN
from baton_serve.router.pool.model_card import ModelFacts
from tests.kits.registry import worker as registered
from tests.kits.router.workers import new_worker


def test_room_counts_what_others_sent_and_what_we_did_since() -> None:
    one = new_worker("w", limit=10)
    one.usage.in_flight = 2
    one.report(WorkerLoad(running=5, waiting=1, reading=1), 0.0)
    assert one.usage.occupied == 7
    one.usage.in_flight = 4
    assert one.usage.occupied == 9
    one.usage.in_flight = 0
    assert (one.usage.occupied, one.usage.room) == (5, 5)


def status(load: WorkerLoad, tp: int = 1) -> WorkerStatus:
    return registered("w", load=load, tp=tp, role=Role.DECODE, compatibility_hash="")


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
    pool.on_room.append(lambda: woken.append(one.usage.room))
    now_s += LOAD_TTL_S - 0.1
    assert not pool.forget_old_loads()
    assert one.usage.room == 0
    pool.apply([full])  # because of another worker: nothing new about this one
    now_s += 0.2
    assert pool.forget_old_loads()
    assert (one.usage.room, woken[-1]) == (4, 4), "who waits is told"
    pool.enter(one)
    assert one.usage.room == 3
    pool.apply([status(WorkerLoad(running=4, draining=True))])
    assert one.usage.room == 0
    now_s += LOAD_TTL_S
    pool.forget_old_loads()
    assert (one.usage.room, one.takes_work) == (3, False), "leaving is for good"


async def test_a_load_that_the_list_repeats_is_not_corrected_again() -> None:
    pool = WorkerPool(4)
    full = status(WorkerLoad(running=2))
    pool.apply([full])
    (one,) = pool
    pool.enter(one)
    pool.apply([full])
    assert one.usage.occupied == 3, "two that were reported, one sent since"


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


async def test_requests_that_a_server_has_not_counted_yet_are_neither_forgotten_nor_counted_twice() -> None:
    pool = WorkerPool(4, vllm=PLAIN)
    (one,) = pool.add_static([], ["vllm+http://d?max_num_seqs=10"])
    first = [pool.enter(one) for _ in range(3)]
    pool.reported(one, WorkerLoad(running=5), None, num_sent=3)
    assert one.usage.occupied == 5, "three of ours, two of somebody else's"
    later = pool.enter(one)
    assert one.usage.occupied == 6
    pool.reported(one, WorkerLoad(running=5), None, num_sent=3)
    assert one.usage.occupied == 5, "the later one may be among the five"
    pool.reported(one, WorkerLoad(running=2), None, num_sent=4)
    assert one.usage.occupied == 4, "two of ours are not counted yet"
    for reservation in (*first, later):
        pool.leave(reservation)
    pool.reported(one, WorkerLoad(running=4), None, num_sent=4)
    assert one.usage.occupied == 0, "when it was asked, the four were ours"


async def test_a_worker_inside_which_requests_wait_has_no_room() -> None:
    pool = WorkerPool(4, vllm=PLAIN)
    (one,) = pool.add_static([], ["vllm+http://d?max_num_seqs=10"])
    sent = [pool.enter(one) for _ in range(4)]
    pool.reported(one, WorkerLoad(running=3, waiting=1), 3, num_sent=4)
    assert one.usage.room == -1
    for reservation in sent[:2]:
        pool.leave(reservation)
    assert one.usage.room == 1, "what has ended makes room before the next report"
    one.forget_report()
    assert one.usage.room == 8


def test_a_host_name_is_forgotten_with_all_its_addresses() -> None:
    pool = WorkerPool(4, vllm=PLAIN)
    name = worker_address("vllm+http://pods:1")
    left: list[Worker] = []
    pool.on_left.append(left.append)
    workers = pool.add_addresses({name.at("10.0.0.1"): Role.DECODE, name.at("10.0.0.2"): Role.DECODE}, given=name)
    assert [worker.worker_id for worker in workers] == ["vllm+http://10.0.0.1:1", "vllm+http://10.0.0.2:1"]
    assert pool.forget_address(workers[0].worker_id) == []
    assert pool.forget_address(name.worker_id) == workers == left
    assert len(pool) == 0


def test_another_engine_at_the_same_address_means_that_the_first_is_gone() -> None:
    pool = WorkerPool(4, vllm=PLAIN)
    gone: list[str] = []
    pool.on_gone.append(gone.append)
    (one,) = pool.add_static([], ["vllm+http://d"])
    for engine_id in ("first", "second", ""):
        pool.engine_started(one, engine_id)
    assert gone == ["vllm+http://d", "first", "second"]
