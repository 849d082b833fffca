"""The simulated clock: order of events, timers that are cancelled, futures and queues that run on it."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.router.pool import Reservation
from baton_serve.router.queue.worker_queue import WorkerQueue
from bench.scale.clock import SimulatedLoop


def test_events_happen_in_order_of_time_and_then_in_order_of_asking() -> None:
    loop, seen = SimulatedLoop(), []
    for when_s, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        loop.call_at(when_s, lambda name=name: seen.append((loop.now_s, name)))
    loop.run()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (3.0, "d")]


def test_an_event_of_the_past_happens_now() -> None:
    loop, seen = SimulatedLoop(), []
    loop.call_at(5.0, lambda: loop.call_at(1.0, lambda: seen.append(loop.now_s)))
    loop.run()
    assert seen == [5.0]


def test_a_cancelled_timer_neither_happens_nor_moves_the_clock() -> None:
    loop, seen = SimulatedLoop(), []
    loop.call_later(9.0, seen.append, 9).cancel()
    loop.call_at(1.0, seen.append, 1)
    loop.run()
    assert (seen, loop.now_s) == ([1], 1.0)


def test_an_error_in_an_event_ends_the_run() -> None:
    loop = SimulatedLoop()
    loop.call_at(1.0, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loop.run()


def test_a_queue_of_the_router_waits_on_it() -> None:
    places: list[Reservation] = []
    got: list[float] = []
    with SimulatedLoop() as loop:
        queue = WorkerQueue(lambda _: None)
        waiter = queue.enter(lambda _: places.pop() if places else None, 0, 1, "group")
        waiter.future.add_done_callback(lambda _: got.append(loop.now_s))

        def make_room() -> None:
            places.append(Reservation(None))  # type: ignore[arg-type]
            queue.wake()

        loop.call_at(3.0, make_room)
        loop.run()
    assert got == [3.0]


def test_two_loops_cannot_run_in_one_thread() -> None:
    with SimulatedLoop(), pytest.raises(RuntimeError), SimulatedLoop():
        pass
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
