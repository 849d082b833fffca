"""Few things in one turn of the loop."""

from __future__ import annotations

import asyncio

from baton_serve.core.process.turns import Turns


async def test_all_that_is_taken_in_a_turn_counts_until_the_next_one() -> None:
    goes_on = 0

    def go_on() -> None:
        nonlocal goes_on
        goes_on += 1

    turns = Turns(3, go_on)
    await asyncio.sleep(0)
    assert (turns.left, goes_on) == (3, 0), "a turn in which nothing was taken needs no other"
    turns.take()
    turns.take()
    assert turns.left == 1
    turns.take(5)
    assert (turns.left, goes_on) == (0, 0)
    await asyncio.sleep(0)
    assert (turns.left, goes_on) == (3, 1)
