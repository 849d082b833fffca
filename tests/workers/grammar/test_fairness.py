"""How trials of forms are shared between clients."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import RateLimitError
from baton_serve.workers.grammar.trial.fairness import FairLock, Places


def flood(places: Places, client: str) -> int:
    """Takes places until one is refused, and returns how many it got."""
    for number in range(1000):
        try:
            places.take(client)
        except RateLimitError as error:
            assert error.retry_after_s
            return number
    raise AssertionError("there is no bound")


def test_each_client_that_takes_all_it_can_gets_half_of_what_is_free() -> None:
    places = Places(16)
    assert [flood(places, client) for client in "abcdef"] == [8, 4, 2, 1, 1, 0]
    places.give_back("a")
    assert flood(places, "a") == 0, "it has more than are free"
    assert flood(places, "f") == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_no_two_clients_shut_a_third_one_out(steps: list[tuple[str, bool]]) -> None:
    places, taken = Places(8), dict.fromkeys("abc", 0)
    for client, takes in steps:
        if takes:
            try:
                places.take(client)
            except RateLimitError:
                assert taken[client] >= 8 - sum(taken.values())
            else:
                taken[client] += 1
        elif taken[client]:
            places.give_back(client)
            taken[client] -= 1
        assert sum(taken.values()) <= 8
        if not taken["c"]:
            places.take("c")
            places.give_back("c")


async def test_clients_have_turns_and_each_its_requests_in_order() -> None:
    lock, order = FairLock(), []

    async def ask(client: str) -> None:
        await lock.acquire(client[0])
        order.append(client)
        await asyncio.sleep(0)
        lock.release()

    await asyncio.gather(*(ask(each) for each in ("a1", "a2", "a3", "a4", "b1", "c1", "b2")))
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def awaited() -> tuple[FairLock, asyncio.Task[None], asyncio.Task[None]]:
    """A lock that is held, and two that wait for it."""
    lock = FairLock()
    await lock.acquire("a")
    first, second = (asyncio.create_task(lock.acquire(each)) for each in "ab")
    await asyncio.sleep(0)
    return lock, first, second


async def test_what_leaves_while_it_waits_keeps_no_turn() -> None:
    lock, first, second = await awaited()
    first.cancel()
    await asyncio.sleep(0)
    lock.release()
    await second


async def test_a_release_in_the_moment_in_which_one_leaves_goes_to_the_next() -> None:
    lock, first, second = await awaited()
    first.cancel()
    lock.release()
    await second


async def test_what_has_left_costs_its_client_no_turn() -> None:
    lock, order = FairLock(), []

    async def ask(client: str) -> None:
        await lock.acquire(client[0])
        order.append(client)
        lock.release()

    await lock.acquire("c")
    left = [asyncio.create_task(ask("a")) for _ in range(4)]
    tasks = [asyncio.create_task(ask(each)) for each in ("a5", "b1", "b2", "b3")]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    lock.release()
    await asyncio.gather(*tasks)
    assert order == ["a5", "b1", "b2", "b3"]


async def test_what_leaves_in_the_moment_of_its_turn_gives_it_on() -> None:
    lock, first, second = await awaited()
    lock.release()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    lock.release()
    await lock.acquire("c")
