"""The queue for a worker with room: its order, and what one group or one bug does to the others."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.placement import Ahead
from baton_serve.router.pool import Reservation
from baton_serve.router.queue.worker_queue import MOST_IN_A_TURN, WorkerQueue
from tests.kits.router.workers import new_worker as worker


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=20), st.integers(1, 5))
def test_the_queue_hands_out_in_order_and_never_too_much(requests: list[tuple[int, bool]], places: int) -> None:
    asyncio.run(_queue_in_order(requests, places))


async def _queue_in_order(requests: list[tuple[int, bool]], places: int) -> None:
    one = worker("w", limit=places)
    one.standing.healthy = False
    given_back: list[Reservation] = []
    queue = WorkerQueue(given_back.append)

    def pick(_ahead: Ahead) -> Reservation | None:
        if one.standing.healthy and one.usage.room > 0:
            one.usage.in_flight += 1
            return Reservation(one)
        return None

    waiters = [queue.enter(pick, priority, number, "m") for number, (priority, _) in enumerate(requests)]
    tasks = [asyncio.create_task(waiter.reservation()) for waiter in waiters]
    await asyncio.sleep(0)
    for task, (_, leaves) in zip(tasks, requests, strict=True):
        if leaves:
            task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one.standing.healthy = True
    queue.wake()
    staying = [i for i, (_, leaves) in enumerate(requests) if not leaves]
    expected = sorted(staying, key=lambda i: (requests[i][0], i))
    served = [i for i in staying if waiters[i].future.done()]
    assert sorted(served) == sorted(expected[:places])
    assert one.usage.in_flight == len(served) == min(places, len(staying))
    assert len(queue) == len(staying) - len(served)
    for i in served:
        tasks[i].cancel()  # handed a place and gone before it ran: the place comes back
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(given_back) == len(served)
    assert len(queue) == 0


async def test_room_for_thousands_is_given_a_few_in_a_turn_and_in_order() -> None:
    """Each one that gets a place does much in its next step, and all of them together would stall the loop."""
    one = worker("w", limit=10_000)
    one.standing.healthy = False
    queue = WorkerQueue(lambda _: None)

    def pick(_ahead: Ahead) -> Reservation | None:
        return Reservation(one) if one.standing.healthy else None

    waiters = [queue.enter(pick, 0, number, "m") for number in range(3 * MOST_IN_A_TURN + 1)]
    one.standing.healthy = True
    queue.wake()
    num_served = []
    while len(queue):
        queue.wake()  # whoever else wakes it in the same turn
        num_served.append(sum(waiter.future.done() for waiter in waiters))
        assert all(waiter.future.done() for waiter in waiters[: num_served[-1]])
        if len(num_served) == 2:
            waiters.append(queue.enter(pick, 0, len(waiters), "m"))  # comes in between, and is the last one
        await asyncio.sleep(0)
    assert num_served == [MOST_IN_A_TURN, 2 * MOST_IN_A_TURN, 3 * MOST_IN_A_TURN]
    assert all(waiter.future.done() for waiter in waiters)


async def test_room_that_comes_in_pieces_is_given_no_faster_and_the_most_urgent_comes_first() -> None:
    one = worker("w", limit=0)
    queue = WorkerQueue(lambda _: None)

    def pick(_ahead: Ahead) -> Reservation | None:
        if one.usage.room <= 0:
            return None
        one.usage.in_flight += 1
        return Reservation(one)

    waiters = [queue.enter(pick, 0, number, "m") for number in range(2 * MOST_IN_A_TURN)]
    for _ in range(MOST_IN_A_TURN + 8):
        one.usage.limit += 1
        queue.wake()
    assert one.usage.in_flight == MOST_IN_A_TURN
    urgent = queue.enter(pick, -1, len(waiters), "m")
    assert not urgent.future.done()
    one.usage.limit -= 7  # of the eight places that are left
    await asyncio.sleep(0)
    assert urgent.future.done() and one.usage.in_flight == MOST_IN_A_TURN + 1
    assert sum(waiter.future.done() for waiter in waiters) == MOST_IN_A_TURN


async def test_a_group_without_room_does_not_block_another() -> None:
    queue = WorkerQueue(lambda _: None)
    free = Reservation(worker("w"))
    first = queue.enter(lambda _: None, 9, 1, "full")
    second = queue.enter(lambda _: free, 0, 2, "free")
    assert not first.future.done()
    assert await second.reservation() is free
    assert first.fail(TimeoutError())
    with pytest.raises(TimeoutError):
        await first.reservation()
    assert len(queue) == 0


async def test_an_exception_ends_only_the_waiter_that_caused_it() -> None:
    queue = WorkerQueue(lambda _: None)
    free = Reservation(worker("w"))
    broken = False

    def pick(_ahead: Ahead) -> Reservation | None:
        if broken:
            raise KeyError("a bug in a policy")
        return None

    first = queue.enter(pick, 9, 1, "broken")
    second = queue.enter(lambda _: free if broken else None, 0, 2, "free")
    broken = True
    queue.wake()
    assert await second.reservation() is free
    with pytest.raises(KeyError):
        await first.reservation()
    assert len(queue) == 0


@pytest.mark.parametrize("num_waiting", [10, 1000])
async def test_looks_for_room_do_not_grow_with_the_number_of_waiters(num_waiting: int) -> None:
    """Those behind a waiter of a group are not looked at once all of the group's workers are waited for."""
    looks: list[int] = []

    def waits_for_all(number: int, ahead: Ahead) -> Reservation | None:
        looks.append(number)
        ahead.groups.add(number % 2)
        return None

    queue = WorkerQueue(lambda _: None)
    waiters = [
        queue.enter(functools.partial(waits_for_all, number), 0, number, number % 2) for number in range(num_waiting)
    ]
    looks.clear()
    queue.wake()
    assert looks == [0, 1]
    for waiter in waiters[2:]:
        queue.forget(waiter)
    assert len(queue) == 2
    assert sum(map(len, queue._groups.values())) <= 4, "those that left behind a long wait are not kept"


async def test_groups_are_served_in_one_order() -> None:
    served: list[int] = []

    def takes(number: int, _ahead: Ahead) -> Reservation | None:
        if not is_open:
            return None
        served.append(number)
        return Reservation(worker("w"))

    is_open = False
    queue = WorkerQueue(lambda _: None)
    waiters = [
        queue.enter(functools.partial(takes, number), number % 3, number, number % 5 % 2) for number in range(20)
    ]
    queue.forget(waiters[9])
    queue.forget(waiters[1])
    is_open = True
    queue.wake()
    assert served == sorted((n for n in range(20) if n not in (1, 9)), key=lambda n: (n % 3, n))
    assert len(queue) == 0 == len(queue._groups)


class Asked:
    """A request's ``pick``, and so everything that its waiter keeps in memory."""

    def __init__(self, found: Reservation | None = None) -> None:
        self.found = found

    def __call__(self, _ahead: Ahead) -> Reservation | None:
        return self.found


async def test_a_queue_keeps_nothing_of_requests_that_are_gone_or_served() -> None:
    queue = WorkerQueue(lambda _: None)
    head = queue.enter(Asked(), 0, 1, "m", 10)
    gone, served = Asked(), Asked(Reservation(worker("w")))
    kept = weakref.ref(gone), weakref.ref(served)
    assert queue.enter(gone, 0, 2, "m", 10).fail(RuntimeError())
    assert queue.enter(served, 0, 3, "m", 10).future.done()
    del gone, served
    gc.collect()
    assert [one() for one in kept] == [None, None]
    assert (len(queue), queue.num_bytes) == (1, 10)
    assert head.fail(RuntimeError())
    assert (len(queue), queue.num_bytes) == (0, 0)
