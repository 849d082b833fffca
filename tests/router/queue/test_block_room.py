"""Room in blocks: who has it, who waits for it, and who never will."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.placement import Ahead, Need, placeable
from baton_serve.router.pool import Reservation, Worker, WorkerPool
from baton_serve.router.queue.worker_queue import Waiter, WorkerQueue
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.placement import with_blocks, worker

BLOCK = 16


def of_blocks(num: int, **kwargs: Worker) -> Need:
    """What takes exactly so many blocks."""
    return Need(num * BLOCK - 1, exact=True, **kwargs)


def test_room_is_what_was_reported_less_what_was_sent_since() -> None:
    pool, one = WorkerPool(4), with_blocks("a", free=6, cached=4)
    place = pool.enter(one, 3)
    assert (one.usage.spare_blocks, of_blocks(7).fits(one), of_blocks(8).fits(one)) == (7, True, False)
    one.report(WorkerLoad(free_blocks=7), 2.0)
    assert one.usage.spare_blocks == 7, "it is in the report"
    pool.leave(place)
    assert one.usage.spare_blocks == 10, "it has gone since"


def test_a_worker_that_reports_no_blocks_has_room_for_any_prompt() -> None:
    bare, silent = worker("a"), worker("b", num_blocks=10, block_size=BLOCK)
    assert of_blocks(10**6).fits(bare) and of_blocks(10**6).fits(silent)


@pytest.mark.parametrize(
    ("load", "counts"),
    [
        (WorkerLoad(running=1, pinned_blocks=10), False),
        (WorkerLoad(reading=1, pinned_blocks=10), False),
        (WorkerLoad(waiting=1, pinned_blocks=10), True),
        (WorkerLoad(pinned_blocks=10), True),
    ],
)
def test_an_old_report_counts_if_nothing_ran(load: WorkerLoad, counts: bool) -> None:
    """Blocks kept by reads that hang are no sign of a busier time."""
    one = worker("a", num_blocks=10, block_size=BLOCK)
    one.report(load, 1.0)
    one.forget_report()
    assert of_blocks(1).fits(one) is not counts


def test_an_estimate_asks_for_half_a_cache_at_most() -> None:
    one = worker("a", num_blocks=10, block_size=BLOCK)
    assert Need(10**6, exact=False).blocks_on(one) == 5
    assert Need(BLOCK, exact=False).blocks_on(one) == 2, "and the first new token"


def test_a_worker_that_holds_the_blocks_takes_them_over() -> None:
    one = with_blocks("a", free=0, cached=1)
    assert of_blocks(9, source=one).fits(one)
    assert of_blocks(9, source=one).blocks_on(one) == 9, "they are in use, and no longer under a lease"


def test_a_prompt_larger_than_every_cache_is_the_clients_fault() -> None:
    small, large = (worker(name, num_blocks=num, block_size=BLOCK) for name, num in (("s", 4), ("l", 9)))
    with pytest.raises(BadRequestError, match=r"160 tokens.* holds 144") as caught:
        Need(160, exact=True).check([small, large], "prompt")
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    of_blocks(9).check([small, large], "prompt")
    Need(160, exact=False).check([small, large], "prompt")
    Need(160, exact=True).check([small, worker("bare")], "prompt")
    Need(160, exact=True).check([], "prompt")


# --- who waits


def picker(
    workers: list[Worker], need: Need, pool: WorkerPool, group: str = "g"
) -> Callable[[Ahead], Reservation | None]:
    def pick(ahead: Ahead) -> Reservation | None:
        found = placeable(workers, need.fits, ahead, group)
        return pool.enter(found[0], need.blocks_on(found[0])) if found else None

    return pick


async def test_small_requests_do_not_pass_a_large_one_that_waits() -> None:
    pool, one = WorkerPool(4), with_blocks("a", free=10)
    queue = WorkerQueue(pool.leave)
    running = [pool.enter(one, 3), pool.enter(one, 3)]
    large = queue.enter(picker([one], of_blocks(9), pool), 0, 1, "g")
    small = queue.enter(picker([one], of_blocks(1), pool), 0, 2, "g")
    other = queue.enter(picker([one], of_blocks(1), pool, "direct"), 0, 3, "direct")
    for place in running:
        assert not (large.future.done() or small.future.done() or other.future.done()), "there is room for small ones"
        pool.leave(place)
        queue.wake()
    assert (large.future.done(), small.future.done(), other.future.done()) == (True, True, False)


async def test_a_more_urgent_request_goes_ahead_of_a_large_one() -> None:
    pool, one = WorkerPool(4), with_blocks("a", free=10)
    queue = WorkerQueue(pool.leave)
    pool.enter(one, 3)
    large = queue.enter(picker([one], of_blocks(9), pool), 0, 1, "g")
    urgent = queue.enter(picker([one], of_blocks(1), pool), -1, 2, "g")
    assert (large.future.done(), urgent.future.done()) == (False, True)


async def test_a_request_that_waits_leaves_the_workers_of_others_alone() -> None:
    """A large one waits for ``a``, the only one it may go to; the small one behind it may also use ``b``."""
    pool, a, b = WorkerPool(4), with_blocks("a", free=10), with_blocks("b", free=10)
    queue = WorkerQueue(pool.leave)
    pool.enter(a, 3)
    large = queue.enter(picker([a], of_blocks(9), pool, "failed b"), 0, 1, "failed b")
    small = queue.enter(picker([a, b], of_blocks(1), pool), 0, 2, "g")
    assert not large.future.done()
    assert (await small.reservation()).worker is b


async def test_nobody_waits_behind_a_request_for_a_worker_whose_blocks_are_stuck() -> None:
    """Nothing runs there, so nothing will make room: what is left is for those that fit."""
    pool, stuck = WorkerPool(4), with_blocks("a", free=5)
    queue = WorkerQueue(pool.leave)
    large = queue.enter(picker([stuck], of_blocks(9), pool), 0, 1, "g")
    small = queue.enter(picker([stuck], of_blocks(1), pool), 0, 2, "g")
    assert (large.future.done(), small.future.done()) == (False, True)


@given(
    st.lists(st.tuples(st.integers(1, 10), st.integers(0, 2)), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_requests_of_all_sizes_are_served_in_order(requests: list[tuple[int, int]], rng: random.Random) -> None:
    asyncio.run(_in_order(requests, rng))


async def _in_order(requests: list[tuple[int, int]], rng: random.Random) -> None:
    """Two workers of ten blocks and four sequences; requests come and end at random."""
    pool = WorkerPool(4)
    workers = [with_blocks(name, free=10) for name in "ab"]
    for one in workers:
        one.usage.limit = 4
    queue, running = WorkerQueue(pool.leave), list[Reservation]()
    coming = list(enumerate(requests))
    waiting: dict[int, Waiter] = {}
    while coming or waiting or running:
        if coming and (rng.random() < 0.5 or not running):
            number, (num_blocks, priority) = coming.pop(0)
            waiting[number] = queue.enter(picker(workers, of_blocks(num_blocks), pool), priority, number, "g")
        else:
            pool.leave(running.pop(rng.randrange(len(running))))
            queue.wake()
        served = [number for number, waiter in waiting.items() if waiter.future.done()]
        running += [await waiting.pop(number).reservation() for number in served]
        assert all(one.usage.held_blocks <= 10 and one.usage.in_flight <= 4 for one in workers)
        still = [(requests[number][1], number) for number in waiting]
        assert all((requests[number][1], number) < min(still, default=(9, 0)) for number in served)
        assert running or not waiting, "nobody waits for a worker where nothing runs"


async def test_a_worker_with_little_room_does_not_have_everybody_asked() -> None:
    """It is idle and nothing there will make room, so nobody's wait keeps those behind from being looked at."""
    pool, stuck = WorkerPool(4), with_blocks("a", free=2)
    queue, num_asked = WorkerQueue(pool.leave), 0

    def enter(number: int, num_blocks: int) -> Waiter:
        need = of_blocks(num_blocks)
        pick = picker([stuck], need, pool)

        def counted(ahead: Ahead) -> Reservation | None:
            nonlocal num_asked
            num_asked += 1
            return pick(ahead)

        return queue.enter(counted, 0, number, "g", need=need)

    large = [enter(number, 5 + number % 3) for number in range(100)]
    num_asked = 0
    queue.wake()
    assert num_asked == 1, "the first of the smallest"
    small = enter(100, 2)
    assert small.future.done() and not any(waiter.future.done() for waiter in large)


_STEPS = st.tuples(st.integers(1, 10), st.integers(0, 2), st.sampled_from(["a", "b", "ab"]), st.booleans())


@given(st.lists(_STEPS, min_size=1, max_size=40), st.tuples(st.integers(1, 10), st.integers(1, 10)))
def test_a_request_that_the_queue_does_not_ask_would_have_found_no_room(
    steps: list[tuple[int, int, str, bool]], free: tuple[int, int]
) -> None:
    told, untold = (asyncio.run(_places(steps, free, tells=tells)) for tells in (True, False))
    assert told == untold


async def _places(steps: list[tuple[int, int, str, bool]], free: tuple[int, int], *, tells: bool) -> list[list[str]]:
    """Who has a place where after each step. ``tells``: the queue knows how much each needs."""
    pool = WorkerPool(4)
    workers = {name: with_blocks(name, free=num) for name, num in zip("ab", free, strict=True)}
    queue, waiters, history = WorkerQueue(pool.leave), list[Waiter](), list[list[str]]()
    running: list[Reservation] = []
    for number, (num_blocks, priority, group, ends) in enumerate(steps):
        need = of_blocks(num_blocks)
        pick = picker([workers[name] for name in group], need, pool, group)
        waiters.append(queue.enter(pick, priority, number, group, need=need if tells else None))
        running += [waiter.future.result() for waiter in waiters if waiter.future.done()]
        history.append([place.worker.worker_id for place in running])
        waiters = [waiter for waiter in waiters if not waiter.future.done()]
        if ends and running:
            pool.leave(running.pop(0))
            queue.wake()
    return history


# --- through the router


async def test_a_prompt_waits_for_a_d_with_blocks(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    cluster.announce(d1=WorkerLoad(running=1, pinned_blocks=10))
    asked = asyncio.create_task(cluster.post(chat()))
    await cluster.until_state("held")
    cluster.announce(d1=WorkerLoad(free_blocks=1, pinned_blocks=9))
    assert (await asked).status_code == 200
    assert len(d.bodies) == 1
    assert [one.usage.held_blocks for one in cluster.pool] == [0, 0]
    cluster.check_idle()


async def test_a_d_whose_blocks_are_stuck_is_not_idle(cluster: Cluster) -> None:
    _, stuck, busy = await cluster.fleet("prefill", "decode", "decode")
    cluster.announce(d1=WorkerLoad(pinned_blocks=10), d2=WorkerLoad(running=7, free_blocks=3, pinned_blocks=7))
    for one in cluster.pool:
        if one.worker_id == "d1":
            one.forget_report()
    assert (await cluster.post(chat())).status_code == 200
    assert (len(stuck.bodies), len(busy.bodies)) == (0, 1)


async def test_a_prompt_waits_for_a_p_with_blocks(cluster: Cluster) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    cluster.announce(p0=WorkerLoad(running=1, pinned_blocks=10))
    asked = asyncio.create_task(cluster.post(chat()))
    await cluster.until_state("queued")
    assert p.bodies == []
    cluster.announce(p0=WorkerLoad(free_blocks=10))
    assert (await asked).status_code == 200
    cluster.check_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_fits_no_d_is_refused_at_once(cluster: Cluster, stream: bool) -> None:
    """P knows how many tokens the prompt has."""
    _, d = await cluster.fleet("prefill", "decode")
    for one in cluster.pool:
        one.usage.num_blocks, one.usage.block_size = (10, 16) if one.worker_id == "p0" else (1, 3)
    response = await cluster.post(chat(stream=stream))
    assert ("largest KV cache" in response.text, d.bodies) == (True, [])
    assert response.status_code == (200 if stream else 400), "the first token was sent already"
    await eventually(lambda: len(cluster.active) == 0)
    assert cluster.leases.released == ["leasep01"]
    cluster.check_idle()


async def test_too_many_token_ids_are_told_the_tighter_of_the_two_bounds(cluster: Cluster) -> None:
    """Each worker has room for 2048 tokens, and reports a context of 1000."""
    p, _ = await cluster.fleet("prefill", "decode")
    for one in cluster.pool:
        one.usage.num_blocks = 128
    body = {"model": "m", "prompt": [1] * 3000, "max_tokens": 4}
    response = await cluster.client.post("/v1/completions", json=body)
    assert (response.status_code, p.bodies) == (400, [])
    assert response.json()["error"]["message"] == (
        "The prompt has 3000 tokens, but this model's maximum context length is 1000 tokens, "
        "at least one of them for the answer."
    )


async def test_token_ids_that_fit_nowhere_are_not_even_prefilled(cluster: Cluster) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    response = await cluster.post({"model": "m", "prompt": [1] * 160, "max_tokens": 4}, "/v1/completions")
    assert (response.status_code, response.json()["error"]["param"], p.bodies) == (400, "prompt", [])
    response = await cluster.post({"model": "m", "prompt": [1] * 159, "max_tokens": 4}, "/v1/completions")
    assert response.status_code == 200
